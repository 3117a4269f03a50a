//! Messages and stubs, generated from `proto/shop.proto` by `cargo xtask protos`.

#![allow(missing_docs, unreachable_pub, clippy::all, reason = "generated")]

include!("proto/shop.v1.rs");
