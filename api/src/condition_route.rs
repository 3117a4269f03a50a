//! ConditionRoute: the spec as written, validated, and as its policy gets it.

#[cfg(feature = "manifest")]
mod spec {
    use std::sync::Arc;

    use crate::kind::{FieldError, RuleSpec};

    /// The spec of a ConditionRoute.
    #[derive(Debug)]
    pub struct ConditionRouteSpec;

    impl ConditionRouteSpec {
        /// Parses and validates.
        pub fn parse(_: serde_json::Value) -> Result<Arc<dyn RuleSpec>, Vec<FieldError>> {
            Err(Vec::new())
        }
    }
}
#[cfg(feature = "manifest")]
pub use spec::ConditionRouteSpec;
