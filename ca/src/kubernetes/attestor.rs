//! Attests callers by the tokens of their service accounts.
//!
//! The API server says whose a token is; the pod that it is bound to is then looked up
//! itself, since the API server goes on to accept the token of a deleted pod for a while. A
//! pod that is being deleted keeps its identity until the end of its grace period, which is
//! what it ends its work in; after that, as after its end or its deletion, it gets nothing
//! more. Only what the API server says now counts: nothing is kept between calls.

use std::{sync::Arc, time::Duration};

use k8s_openapi::{
    api::{
        authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus},
        core::v1::Pod,
    },
    jiff::Timestamp,
};
use kube::{Api, Client, api::PostParams};
use rulecast_api::{Code, SpiffeId, spiffe::valid_segment};
use rulecast_identity::{AttestedFacts, PodFacts, client::KUBERNETES_AUDIENCE};
use tokio::sync::Semaphore;
use zeroize::Zeroizing;

use super::{CallError, api_error, in_time};
use crate::{CaError, service::is_own};

/// How a caller was attested, in facts and metrics.
pub const METHOD: &str = "kubernetes";
/// Audience of the tokens that pods of the Dubbo control plane's clients have.
pub const DUBBO_AUDIENCE: &str = "dubbo-ca";
/// Longest token in bytes; real ones have about 1,000.
pub const MAX_TOKEN: usize = 16 * 1024;

/// How long the API server may take for all that one caller needs: less than callers wait.
const LIMIT: Duration = Duration::from_secs(5);
/// Callers whom the API server is asked about at a time; more wait within [`LIMIT`].
const AT_ONCE: usize = 64;

const USER: &str = "system:serviceaccount:";
const POD_NAME: &str = "authentication.kubernetes.io/pod-name";
const POD_UID: &str = "authentication.kubernetes.io/pod-uid";
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";

/// Attests by the API server. Clones share it.
#[derive(Clone)]
pub struct PodAttestor {
    client: Client,
    places: Arc<Semaphore>,
}

impl std::fmt::Debug for PodAttestor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PodAttestor")
    }
}

/// Whose a token is, as the API server answered.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Account {
    namespace: String,
    name: String,
    pod: String,
    uid: String,
    /// Where the token names one.
    node: Option<String>,
}

/// What became of a look for the pod of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Look {
    /// It is there, and this is how it is known now.
    Found(PodFacts),
    /// The API server cannot be asked now.
    Unknown(CaError),
}

impl PodAttestor {
    /// Of this API server, which must let us create `tokenreviews` and get `pods`.
    pub fn new(client: Client) -> Self {
        Self { client, places: Arc::new(Semaphore::new(AT_ONCE)) }
    }

    /// What it asks.
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// The identity and the facts of whoever shows `token`, which must be for `audience`.
    /// Refused with:
    ///
    /// - [`Code::ServiceAccountToken`]: the API server does not vouch for it, or it is not
    ///   for this authority, not a service account's, or not a pod's.
    /// - [`Code::PodGone`]: its pod is gone, over, or another one.
    /// - [`Code::PeerIdentity`]: it is of the authority's own name.
    /// - [`Code::AuthorityUnreachable`]: the API server cannot be asked now.
    pub async fn attest(
        &self,
        token: Zeroizing<String>,
        audience: &str,
        trust_domain: &str,
    ) -> Result<(SpiffeId, AttestedFacts), CaError> {
        if token.is_empty()
            || token.len() > MAX_TOKEN
            || !token.bytes().all(|b| b.is_ascii_graphic())
        {
            return Err(refused("it is no token"));
        }
        let asked = async {
            // Never closed.
            let _place = self.places.acquire().await.ok();
            let account = account(&self.review(token, audience).await?, audience)?;
            // Before anything else is asked: nobody may be the authority.
            if is_own(&account.namespace, &account.name) {
                return Err(CaError::new(
                    Code::PeerIdentity,
                    format!(
                        "service account {} of {} is the authority's own; run other pods as \
                         another one",
                        account.name, account.namespace
                    ),
                ));
            }
            let pod = self.pod(&account.namespace, &account.pod).await.map_err(|e| {
                api_error(&format!("pod {}/{} cannot be read", account.namespace, account.pod), &e)
            })?;
            let pod = known(pod.as_ref(), &account, Timestamp::now())?;
            Ok((account, pod))
        };
        let (account, pod) = tokio::time::timeout(LIMIT, asked)
            .await
            .unwrap_or_else(|_| Err(api_error("no token can be reviewed", &slow())))?;
        let text = format!("spiffe://{trust_domain}/ns/{}/sa/{}", account.namespace, account.name);
        let spiffe = text.parse().map_err(|e| refused(&format!("{e}")))?;
        let facts = AttestedFacts {
            namespace: account.namespace,
            application: account.name,
            method: METHOD.into(),
            token_id: None,
            pod: Some(pod),
        };
        Ok((spiffe, facts))
    }

    /// Looks for the pod of a certificate that `account` (its service account) of
    /// `namespace` shows. [`Code::PodGone`] when it is gone, over, or another one.
    pub async fn look(
        &self,
        namespace: &str,
        account: &str,
        facts: &PodFacts,
    ) -> Result<Look, CaError> {
        let account = Account {
            namespace: namespace.into(),
            name: account.into(),
            pod: facts.name.clone(),
            uid: facts.uid.clone(),
            node: facts.node.clone(),
        };
        let asked = async {
            // Never closed.
            let _place = self.places.acquire().await.ok();
            self.pod(namespace, &facts.name).await
        };
        let pod = tokio::time::timeout(LIMIT, asked).await.unwrap_or_else(|_| Err(slow()));
        match pod {
            Ok(pod) => known(pod.as_ref(), &account, Timestamp::now()).map(Look::Found),
            Err(error) => {
                let what = format!("pod {namespace}/{} cannot be read", facts.name);
                Ok(Look::Unknown(api_error(&what, &error)))
            }
        }
    }

    async fn review(
        &self,
        token: Zeroizing<String>,
        audience: &str,
    ) -> Result<TokenReviewStatus, CaError> {
        let review = TokenReview {
            spec: TokenReviewSpec {
                audiences: Some(vec![audience.into()]),
                token: Some(String::clone(&token)),
            },
            ..TokenReview::default()
        };
        let api: Api<TokenReview> = Api::all(self.client.clone());
        let params = PostParams::default();
        let answer = in_time(LIMIT, api.create(&params, &review)).await;
        // The copy that was sent; what the client made of it is out of reach.
        drop(Zeroizing::new(review.spec.token.unwrap_or_default()));
        let answer = answer.map_err(|e| api_error("no token can be reviewed", &e))?;
        answer.status.ok_or_else(|| {
            let empty = "the API server answered a token review without a status";
            CaError::new(Code::AuthorityUnreachable, empty)
        })
    }

    async fn pod(&self, namespace: &str, name: &str) -> Result<Option<Pod>, CallError> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        in_time(LIMIT, api.get_opt(name)).await
    }
}

fn slow() -> CallError {
    CallError::Slow(LIMIT)
}

fn refused(why: &str) -> CaError {
    CaError::new(
        Code::ServiceAccountToken,
        format!(
            "the service-account token cannot be taken: {why}; show the pod's own projected \
             token, of audience {KUBERNETES_AUDIENCE} or, on the wire of the Dubbo control \
             plane, {DUBBO_AUDIENCE}"
        ),
    )
}

/// Whose the token is, of the API server's answer.
fn account(status: &TokenReviewStatus, audience: &str) -> Result<Account, CaError> {
    let user = match &status.user {
        Some(user) if status.authenticated == Some(true) => user,
        _ => {
            let why = status.error.as_deref().unwrap_or("it is expired, malformed or foreign");
            // Written elsewhere, and for our log as well.
            let why: String = why.chars().filter(|c| !c.is_control()).take(200).collect();
            return Err(refused(&format!("the API server does not vouch for it ({why})")));
        }
    };
    // An API server that knows no audiences vouches for any token, and says none here.
    let audiences = status.audiences.as_deref().unwrap_or_default();
    if !audiences.iter().any(|known| known == audience) {
        return Err(refused("it is not of our audience, as far as the API server says"));
    }
    let name = user.username.as_deref().unwrap_or_default();
    let (namespace, name) = name
        .strip_prefix(USER)
        .and_then(|rest| rest.split_once(':'))
        .filter(|(namespace, name)| valid_segment(namespace) && valid_segment(name))
        .ok_or_else(|| refused("it is not of a service account"))?;
    let one = |key: &str| match user.extra.as_ref().and_then(|extra| extra.get(key)) {
        None => Ok(None),
        Some(values) => match &values[..] {
            [value] if valid_segment(value) => Ok(Some(value.clone())),
            _ => Err(refused(&format!("the API server's answer has no usable {key}"))),
        },
    };
    let bound = |value: Option<String>| {
        value.ok_or_else(|| refused("it is not bound to a pod, so it would outlive every pod"))
    };
    Ok(Account {
        namespace: namespace.into(),
        name: name.into(),
        pod: bound(one(POD_NAME)?)?,
        uid: bound(one(POD_UID)?)?,
        node: one(NODE_NAME)?,
    })
}

/// Whether the pod is the one that `account` names, and still has work to do at `now`.
fn known(pod: Option<&Pod>, account: &Account, now: Timestamp) -> Result<PodFacts, CaError> {
    let gone = |why: String| {
        CaError::new(Code::PodGone, format!("the pod {}/{} {why}", account.namespace, account.pod))
    };
    let pod = pod.ok_or_else(|| gone("is gone; another one joins by itself".into()))?;
    let metadata = &pod.metadata;
    if metadata.namespace.as_ref() != Some(&account.namespace)
        || metadata.name.as_ref() != Some(&account.pod)
        || metadata.uid.as_ref() != Some(&account.uid)
    {
        return Err(gone("is another one of the same name; it has a token of its own".into()));
    }
    if let Some(end) = &metadata.deletion_timestamp
        && end.0 <= now
    {
        return Err(gone("was deleted, and its grace period is over".into()));
    }
    let spec = pod.spec.as_ref();
    let name = spec.and_then(|spec| spec.service_account_name.as_deref()).unwrap_or_default();
    let name = if name.is_empty() { "default" } else { name };
    if name != account.name {
        return Err(gone(format!("runs as service account {name}, not as {}", account.name)));
    }
    if let Some(phase @ ("Succeeded" | "Failed")) =
        pod.status.as_ref().and_then(|status| status.phase.as_deref())
    {
        return Err(gone(format!("is over ({phase})")));
    }
    let node = spec.and_then(|spec| spec.node_name.clone()).filter(|node| !node.is_empty());
    // A pod never moves.
    if let Some(named) = &account.node
        && node.as_ref() != Some(named)
    {
        return Err(gone(format!(
            "is on node {}, not on {named}",
            node.as_deref().unwrap_or("(none)")
        )));
    }
    Ok(PodFacts { name: account.pod.clone(), uid: account.uid.clone(), node })
}

#[cfg(test)]
mod tests;
