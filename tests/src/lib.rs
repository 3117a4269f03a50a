//! End-to-end and fault tests of Rulecast over real processes and real TLS.

pub mod model;
