//! Calls that are routed, balanced, tried again and watched as rules say.
