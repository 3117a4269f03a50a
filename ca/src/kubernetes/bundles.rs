//! The trust bundle in every namespace.
