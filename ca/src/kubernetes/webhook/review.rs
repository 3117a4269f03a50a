//! An admission review: what the API server asks, and the answer. Pure; the same review
//! always gets the same answer, so a dry run differs in nothing.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    config::WebhookConfig,
    form::Form,
    injection::{self, Injection},
};

const API_VERSION: &str = "admission.k8s.io/v1";
const KIND: &str = "AdmissionReview";

/// By which label a pod was found: each has its own path, and its own webhook in the
/// configuration. The selectors there decide who is asked about; a namespace's labels do
/// not come with a review.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// `rulecast.io/inject`.
    Rulecast,
    /// `dubbo-ca.inject`.
    Dubbo,
}

/// What was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The pod is patched.
    Injected,
    /// The pod is let in as it is.
    Unchanged,
    /// The pod is not let in.
    Refused,
}

impl Verdict {
    /// For logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Injected => "injected",
            Self::Unchanged => "unchanged",
            Self::Refused => "refused",
        }
    }
}

/// An answer to a review.
#[derive(Clone, Debug)]
pub struct Answer {
    /// What was decided.
    pub verdict: Verdict,
    /// The pod's namespace as the request has it.
    pub namespace: String,
    /// The pod's name, or what its name will begin with. Nobody has checked it yet.
    pub name: String,
    /// The AdmissionReview to send.
    pub review: Value,
}

/// A body that is no review of ours. It says nothing of the content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this is no {KIND} of {API_VERSION} with a request")]
pub struct NotAReview;

/// Answers reviews as one configuration wants it.
#[derive(Clone, Debug)]
pub struct Reviewer {
    config: WebhookConfig,
    rulecast: Form,
    dubbo: Form,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Review {
    api_version: String,
    kind: String,
    request: Request,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Request {
    uid: String,
    kind: GroupVersionKind,
    resource: GroupVersionResource,
    #[serde(default)]
    sub_resource: String,
    operation: String,
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    object: Value,
}

#[derive(Deserialize)]
struct GroupVersionKind {
    group: String,
    version: String,
    kind: String,
}

#[derive(Deserialize)]
struct GroupVersionResource {
    group: String,
    version: String,
    resource: String,
}

impl Request {
    fn creates_a_pod(&self) -> bool {
        let (kind, resource) = (&self.kind, &self.resource);
        (&*kind.group, &*kind.version, &*kind.kind) == ("", "v1", "Pod")
            && (&*resource.group, &*resource.version, &*resource.resource) == ("", "v1", "pods")
            && self.sub_resource.is_empty()
            && self.operation == "CREATE"
    }

    fn name(&self) -> &str {
        let metadata = &self.object["metadata"];
        [Some(&*self.name), metadata["name"].as_str(), metadata["generateName"].as_str()]
            .into_iter()
            .flatten()
            .find(|name| !name.is_empty())
            .unwrap_or_default()
    }
}

impl Reviewer {
    /// For a configuration.
    pub fn new(config: WebhookConfig) -> Self {
        let rulecast =
            Form::rulecast(&config.ca_address, &config.dds_address, config.token_seconds);
        Self { rulecast, dubbo: Form::dubbo(&config.ca_address), config }
    }

    /// The answer to `body`, which was sent to the path of `asked`.
    pub fn answer(&self, body: &[u8], asked: Asked) -> Result<Answer, NotAReview> {
        let review: Review = serde_json::from_slice(body).map_err(|_| NotAReview)?;
        let request = review.request;
        if review.api_version != API_VERSION || review.kind != KIND || request.uid.is_empty() {
            return Err(NotAReview);
        }
        let (verdict, response) = match self.decide(&request, asked) {
            Ok(Injection { operations, warnings }) => {
                let mut response = json!({ "uid": request.uid, "allowed": true });
                if !warnings.is_empty() {
                    response["warnings"] = warnings.into();
                }
                if operations.is_empty() {
                    (Verdict::Unchanged, response)
                } else {
                    response["patchType"] = "JSONPatch".into();
                    response["patch"] =
                        BASE64_STANDARD.encode(json!(operations).to_string()).into();
                    (Verdict::Injected, response)
                }
            }
            Err(Refusal { code, reason, message }) => (
                Verdict::Refused,
                json!({
                    "uid": request.uid,
                    "allowed": false,
                    "status": { "status": "Failure", "code": code, "reason": reason,
                        "message": message },
                }),
            ),
        };
        Ok(Answer {
            verdict,
            name: request.name().to_owned(),
            namespace: request.namespace,
            review: json!({ "apiVersion": API_VERSION, "kind": KIND, "response": response }),
        })
    }

    fn decide(&self, request: &Request, asked: Asked) -> Result<Injection, Refusal> {
        if !request.creates_a_pod() || self.config.spares(&request.namespace) {
            return Ok(Injection::default());
        }
        let form = match asked {
            Asked::Rulecast => &self.rulecast,
            Asked::Dubbo if self.config.compat_dubbo => &self.dubbo,
            // Let in as it is, the pod would look for trust that is not there.
            Asked::Dubbo => {
                return Err(Refusal {
                    code: 403,
                    reason: "Forbidden",
                    message: "the pod asks for trust by the label dubbo-ca.inject, and Rulecast's \
                              authority runs without compat-dubbo \
                              (RULECAST_CA_COMPAT_DUBBO=true); switch it on, or label the pod \
                              dubbo-ca.inject: \"false\""
                        .into(),
                });
            }
        };
        injection::inject(&request.object, form).map_err(|error| Refusal {
            code: 400,
            reason: "BadRequest",
            message: format!("the pod cannot be given trust: {error}"),
        })
    }
}

struct Refusal {
    code: u16,
    reason: &'static str,
    message: String,
}

#[cfg(test)]
mod tests;
