//! The sandbox: policies as WebAssembly modules.
