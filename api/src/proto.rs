//! Wire messages and service stubs, generated from `api/proto` by `cargo xtask protos`.

#![allow(missing_docs, unreachable_pub, clippy::all, reason = "generated")]

/// Rules as they travel.
pub mod rules {
    /// First version.
    pub mod v1 {
        include!("proto/rulecast.rules.v1.rs");
    }
}

/// Delivery of rules.
pub mod observe {
    /// First version.
    pub mod v1 {
        include!("proto/rulecast.observe.v1.rs");
    }
}

/// Certificates.
pub mod identity {
    /// First version.
    pub mod v1 {
        include!("proto/rulecast.identity.v1.rs");
    }
}

/// What rules made of calls.
pub mod report {
    /// First version.
    pub mod v1 {
        include!("proto/rulecast.report.v1.rs");
    }
}

/// Local administration.
pub mod admin {
    /// First version.
    pub mod v1 {
        include!("proto/rulecast.admin.v1.rs");
    }
}

/// What clients of the Dubbo control plane speak; names and numbers are theirs.
pub mod dubbo {
    /// Package `dubbo.apache.org.v1alpha1`: certificates, and rules as those clients get them.
    pub mod v1alpha1 {
        include!("proto/dubbo.apache.org.v1alpha1.rs");
    }
    /// Package `org.apache.dubbo.auth.v1alpha1`: delivery of rules.
    pub mod auth {
        include!("proto/org.apache.dubbo.auth.v1alpha1.rs");
    }
    /// Package `v1alpha1`: registration of service names.
    pub mod mapping {
        include!("proto/v1alpha1.rs");
    }
}

/// Descriptors of all of the above, for gRPC reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!("proto/descriptors.bin");

/// Type URL of the items in `ObserveResponse.data`.
pub const RULE_TYPE_URL: &str = "type.googleapis.com/rulecast.rules.v1.Rule";
