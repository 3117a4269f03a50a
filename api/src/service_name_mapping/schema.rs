//! The spec's schema, for Kubernetes. The comments on fields are what `kubectl explain` shows.

use schemars::JsonSchema;
use serde_json::Value;

use super::{MAX_APPLICATION, MAX_INTERFACE};
use crate::{crd, fields::MAX_ITEMS};

/// Says which applications provide an interface. Several objects may speak of one interface: what
/// they say is taken together. The namespace that does so first owns the interface, and its
/// rules for it reach callers everywhere.
#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase")]
#[allow(dead_code, reason = "only its schema is of use; the parser gives better errors")]
struct Spec {
    /// The interface alone, without group and version, for example com.example.OrderService. It
    /// cannot be changed afterwards.
    // The age of a mapping is the age of the claim to the interface.
    #[schemars(
        length(min = 1, max = MAX_INTERFACE),
        regex(pattern = r"^[^\s/:]+$"),
        extend("x-kubernetes-validations" = [{
            "rule": "self == oldSelf",
            "message": "interfaceName cannot be changed; make another mapping",
        }])
    )]
    interface_name: String,
    /// The applications that provide it. A set: writers that apply server-side have their own
    /// entries each.
    #[schemars(length(min = 1, max = MAX_ITEMS), extend("x-kubernetes-list-type" = "set"))]
    application_names: Vec<Application>,
}

/// An application's name.
#[derive(JsonSchema)]
#[allow(dead_code, reason = "only its schema is of use")]
struct Application(
    #[schemars(length(min = 1, max = MAX_APPLICATION), regex(pattern = r"^[^\s,]+$"))] String,
);

/// The schema of a spec.
pub(crate) fn schema() -> Value {
    crd::schema_of::<Spec>()
}
