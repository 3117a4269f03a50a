//! The spec's schema, for Kubernetes. The comments on fields are what `kubectl explain` shows.

use schemars::JsonSchema;
use serde_json::Value;

use super::MAX_KEYS;
use crate::{
    attribute::{MAX_NAME, schema::Condition},
    crd,
    fields::{MAX_ITEMS, MAX_SPAN},
    selector::schema::Selector,
};

/// Says how many calls a server takes.
///
/// Each server counts for itself. Calls come out of a bucket that refills evenly and holds a
/// burst; a call that finds it empty is refused and told when to come again. A server with
/// several limits takes a call when all of them do.
#[derive(JsonSchema)]
#[allow(dead_code, reason = "only its schema is of use; the parser gives better errors")]
struct Spec {
    /// False: acts as if the rule were not there. Default true.
    #[schemars(default = "yes")]
    enabled: bool,
    /// The servers that the limit is for: all entries must match; without any all servers. A
    /// limit outside of the root namespace is for servers of its own namespace only, whatever
    /// stands here.
    #[schemars(length(max = MAX_ITEMS))]
    selector: Option<Vec<Selector>>,
    /// What calls are counted: all of these must hold; without any all calls. Others pass.
    #[schemars(length(max = MAX_ITEMS))]
    r#match: Option<Vec<Condition>>,
    /// Attributes of the call, named as in match: each combination of their values has a bucket
    /// of its own, and so has a value that is absent. Without any all calls share one bucket.
    #[schemars(length(max = MAX_KEYS))]
    keys: Option<Vec<Key>>,
    /// So many calls per period, spread evenly.
    #[schemars(range(min = 1, max = u32::MAX))]
    requests: i64,
    /// The period, such as 500ms, 1s, 1m or 1h; up to a day. Default 1s.
    #[schemars(default = "second", length(max = MAX_SPAN))]
    per: String,
    /// So many calls at once, after a pause. Default: as many as requests.
    #[schemars(range(min = 1, max = u32::MAX))]
    burst: Option<i64>,
}

/// The name of an attribute; not request.id, which is another for every call.
#[derive(JsonSchema)]
#[allow(dead_code, reason = "only its schema is of use")]
struct Key(#[schemars(length(min = 1, max = MAX_NAME))] String);

fn yes() -> bool {
    true
}

fn second() -> String {
    "1s".to_owned()
}

/// The schema of a spec.
pub(crate) fn schema() -> Value {
    crd::schema_of::<Spec>()
}
