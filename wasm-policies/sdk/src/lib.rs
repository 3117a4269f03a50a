//! The guest SDK of Rulecast: write a policy in Rust, without seeing the ABI.
