//! The pods that clients run in, as the API server knows them.
