//! The gRPC service: thin shells around the stream engine.
