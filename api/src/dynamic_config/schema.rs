//! The spec's schema, for Kubernetes. The comments on fields are what `kubectl explain` shows.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde_json::{Value, json};

use super::MAX_PARAMETERS;
use crate::{
    crd,
    fields::MAX_ITEMS,
    matcher::{
        MAX_TEXT,
        schema::{AddressMatch, ParamMatch, StringMatch},
    },
};

/// Gives parameters, such as timeout, retries or weight, to calls and endpoints.
#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase")]
#[allow(dead_code, reason = "only its schema is of use; the parser gives better errors")]
struct Spec {
    /// The form of the entries.
    config_version: Version,
    /// False: entries without a type act as if they were not there. Default true.
    #[schemars(default = "yes")]
    enabled: bool,
    /// What the key names: service, or application. What is for applications goes first, and what
    /// is for services over it.
    scope: Scope,
    /// With scope service the service's key, [group/]interface[:version]; with scope application
    /// the application's name.
    #[schemars(length(min = 1, max = MAX_TEXT), regex(pattern = r"^\S+$"))]
    key: String,
    /// Applied in this order; of two values for one parameter the later one counts.
    #[schemars(length(max = MAX_ITEMS))]
    configs: Option<Vec<Config>>,
}

fn yes() -> bool {
    true
}

#[derive(JsonSchema)]
#[allow(dead_code, reason = "only its schema is of use")]
enum Version {
    #[schemars(rename = "v3.0")]
    V3,
}

#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase")]
#[allow(dead_code, reason = "only its schema is of use")]
enum Scope {
    Service,
    Application,
}

#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase")]
#[allow(dead_code, reason = "only its schema is of use")]
enum Side {
    Consumer,
    Provider,
}

/// Some parameters, and what they are for.
#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase")]
#[allow(dead_code, reason = "only its schema is of use")]
struct Config {
    /// Where it works: consumer, at the caller, or provider, at the endpoint. Default both.
    side: Option<Side>,
    /// The parameters, name: value; values are texts, so numbers need quotes.
    parameters: BTreeMap<String, Text>,
    /// False: an entry with a type acts as if it were not there. Default true.
    #[schemars(default = "yes")]
    enabled: bool,
    /// Empty or general: the rule's enabled decides, and this one's does not. With any other type
    /// it is the other way round.
    #[schemars(length(max = MAX_TEXT))]
    r#type: Option<String>,
    /// What the parameters are for; all that is said must hold.
    r#match: Option<Match>,
    /// The older form of match.address: host or host:port. Default 0.0.0.0, any.
    #[schemars(length(max = MAX_ITEMS))]
    addresses: Option<Vec<Name>>,
    /// Addresses of endpoints that the parameters are for. Default 0.0.0.0, any.
    #[schemars(length(max = MAX_ITEMS))]
    provider_addresses: Option<Vec<Name>>,
    /// The older form of match.application. Default *, any.
    #[schemars(length(max = MAX_ITEMS))]
    applications: Option<Vec<Name>>,
    /// The older form of match.service. Default *, any.
    #[schemars(length(max = MAX_ITEMS))]
    services: Option<Vec<Name>>,
}

/// A text.
#[derive(JsonSchema)]
#[allow(dead_code, reason = "only its schema is of use")]
struct Text(#[schemars(length(max = MAX_TEXT))] String);

/// A name, or an address.
#[derive(JsonSchema)]
#[allow(dead_code, reason = "only its schema is of use")]
struct Name(#[schemars(length(min = 1, max = MAX_TEXT), regex(pattern = r"^\S+$"))] String);

/// What parameters are for.
#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase")]
#[allow(dead_code, reason = "only its schema is of use")]
struct Match {
    /// The address of the one that the parameters are for.
    address: Option<AddressMatch>,
    /// The service.
    service: Option<OneOf>,
    /// The application.
    application: Option<OneOf>,
    /// Another spelling of application.
    app: Option<OneOf>,
    /// Parameters; all of them must match.
    #[schemars(length(max = MAX_ITEMS))]
    param: Option<Vec<ParamMatch>>,
}

/// Any of several.
#[derive(JsonSchema)]
#[allow(dead_code, reason = "only its schema is of use")]
struct OneOf {
    /// Any of these.
    #[schemars(length(min = 1, max = MAX_ITEMS))]
    oneof: Vec<StringMatch>,
}

/// The schema of a spec.
pub(crate) fn schema() -> Value {
    let mut spec = crd::schema_of::<Spec>();
    let parameters = &mut spec["properties"]["configs"]["items"]["properties"]["parameters"];
    parameters["minProperties"] = json!(1);
    parameters["maxProperties"] = json!(MAX_PARAMETERS);
    spec["x-kubernetes-validations"] = json!([crd::service_key_rule()]);
    spec
}
