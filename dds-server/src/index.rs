//! The index: all accepted rules, typed and with digests.
