//! Why the API server did not give what was asked for.

use std::error::Error;

use rulecast_api::{Code, Kind, ResourceId};

use super::object::Unreadable;
use crate::store::{StoreError, StoreProblem};

/// Why a request failed.
#[derive(Clone, Debug)]
pub(super) struct Fault {
    /// As RBAC calls it.
    pub(super) verb: &'static str,
    /// What it was about, for people.
    pub(super) resource: String,
    pub(super) why: Why,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// The server does not know what was asked for.
    Missing,
    /// The kind is being removed.
    Going,
    /// The server no longer has the history that was asked for.
    Gone,
    /// Somebody was faster, or it is there already.
    Conflict(String),
    /// RBAC says no.
    Forbidden(String),
    /// The credentials are no good.
    Unauthorized(String),
    /// The object is no good.
    Invalid(String),
    /// Not reached, or no useful answer.
    Failed(String),
}

impl Fault {
    pub(super) fn new(verb: &'static str, resource: impl Into<String>, error: kube::Error) -> Self {
        let why = match error {
            kube::Error::Api(status) => {
                let said = status.message.clone();
                match status.code {
                    401 => Why::Unauthorized(said),
                    403 => Why::Forbidden(said),
                    404 => Why::Missing,
                    409 => Why::Conflict(said),
                    410 => Why::Gone,
                    400 | 422 => Why::Invalid(said),
                    _ => Why::Failed(format!("{} ({} {})", said, status.code, status.reason)),
                }
            }
            other => Why::Failed(chain(&other)),
        };
        Self { verb, resource: resource.into(), why }
    }

    pub(super) fn failed(
        verb: &'static str,
        resource: impl Into<String>,
        reason: impl Into<String>,
    ) -> Self {
        Self { verb, resource: resource.into(), why: Why::Failed(reason.into()) }
    }

    pub(super) fn unreadable(
        verb: &'static str,
        resource: impl Into<String>,
        error: &Unreadable,
    ) -> Self {
        Self::failed(verb, resource, error.to_string())
    }

    /// Why the store is down; `kind`: the one that cannot be read, if it is about one.
    pub(super) fn problem(&self, kind: Option<Kind>, last_good_in_force: bool) -> StoreProblem {
        let Self { verb, resource, why } = self;
        let crd = kind.map(crd).unwrap_or_default();
        let role = "give its service account the role that docs/kubernetes.md lists";
        let (code, message, hint) = match why {
            Why::Missing => (
                Code::StoreKindMissing,
                format!("the API server does not serve {resource}: the CRD {crd} is not installed"),
                "install it with kubectl apply -f crds/".to_owned(),
            ),
            Why::Going => (
                Code::StoreKindMissing,
                format!("the CRD {crd} is being removed"),
                "install it again with kubectl apply -f crds/".to_owned(),
            ),
            Why::Forbidden(said) => (
                Code::StoreForbidden,
                format!("{verb} {resource} is forbidden: {said}"),
                role.into(),
            ),
            Why::Unauthorized(said) => (
                Code::StoreForbidden,
                format!("{verb} {resource}: the API server takes no credentials of ours: {said}"),
                "see whether the token has ended or is of another cluster".into(),
            ),
            Why::Gone => (Code::StoreDown, format!("{verb} {resource}: it is gone"), String::new()),
            Why::Conflict(said) | Why::Invalid(said) | Why::Failed(said) => (
                Code::StoreDown,
                format!("{verb} {resource}: {said}"),
                "see whether the API server runs and can be reached".into(),
            ),
        };
        StoreProblem {
            file: String::new(),
            line: 0,
            column: 0,
            code,
            field: String::new(),
            value: None,
            message,
            hint,
            resource: String::new(),
            last_good_in_force,
            object: None,
        }
    }

    /// As the answer to a writer. Conflicts are for the caller to tell.
    pub(super) fn into_error(self, id: &ResourceId) -> StoreError {
        let Self { verb, resource, why } = self;
        let unreachable =
            |reason: String| StoreError::Unreachable { verb, resource: resource.clone(), reason };
        match why {
            Why::Forbidden(reason) | Why::Unauthorized(reason) => {
                StoreError::Forbidden { verb, resource, reason }
            }
            Why::Invalid(reason) => StoreError::Invalid { id: id.clone(), reason },
            Why::Conflict(found) => {
                StoreError::Conflict { id: id.clone(), expected: "as it was read".into(), found }
            }
            Why::Missing | Why::Going | Why::Gone => {
                unreachable("the API server does not have it".into())
            }
            Why::Failed(reason) => unreachable(reason),
        }
    }
}

/// The name of a kind's CRD: `conditionroutes.dubbo.apache.org`.
pub(super) fn crd(kind: Kind) -> String {
    let group = kind.api_version.split('/').next().unwrap_or_default();
    format!("{}.{group}", kind.plural)
}

/// An error with all that is under it, each thing once.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        let more = error.to_string();
        if !text.contains(&more) {
            text += ": ";
            text += &more;
        }
        next = error.source();
    }
    text
}
