//! What a client may see.
