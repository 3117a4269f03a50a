//! Where rules come from.
