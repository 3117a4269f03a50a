//! The authority in a Secret.
