//! What a client counts of its decisions.
