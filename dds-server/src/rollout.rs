//! Who holds what: acknowledged digests per stream and kind, and exceptions.
