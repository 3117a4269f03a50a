//! Attests callers by their service-account tokens.
