//! The stream engine: one client's state, without I/O.
