//! The observe client: what a client holds of each kind, without I/O.
