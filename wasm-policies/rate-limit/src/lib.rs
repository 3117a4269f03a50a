//! RateLimit as a Rulecast policy: how many calls a server takes.
