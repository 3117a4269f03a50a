//! Watches the pods of a cluster: of each only what rules may select by, in all namespaces.

use std::{borrow::Cow, net::IpAddr, sync::Arc, time::Duration};

use futures_util::{StreamExt as _, pin_mut, stream::FuturesUnordered};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, Resource, ResourceExt as _,
    core::{NamespaceResourceScope, ObjectMeta},
    runtime::{
        WatchStreamExt as _,
        watcher::{self, Event, watcher},
    },
};
use serde::Deserialize;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{PodEvent, PodId, Pods};
use crate::scope::{Labels, Traits};

/// Questions about single pods that are under way at once.
const QUESTIONS: usize = 8;
/// How long one may take.
const ANSWER: Duration = Duration::from_secs(4);
/// Before one that failed is asked again.
const AGAIN: Duration = Duration::from_millis(500);

/// A pod as far as it is looked at; the rest is read over. Metadata alone would be less to
/// read, but lacks addresses.
#[derive(Clone, Debug, Deserialize)]
struct Seen {
    metadata: ObjectMeta,
    #[serde(default)]
    status: Status,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    #[serde(default, rename = "podIPs")]
    pod_ips: Vec<Address>,
}

#[derive(Clone, Debug, Deserialize)]
struct Address {
    #[serde(default)]
    ip: String,
}

impl Resource for Seen {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        Pod::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        Pod::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        Pod::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        Pod::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// The watch has ended.
#[derive(Debug, thiserror::Error)]
#[error("{}: the watch of pods has ended", rulecast_api::Code::StoreDown)]
pub struct InformerEnded;

/// Keeps `pods` as the API server has them, until `shutdown`. The client should notice a dead
/// connection. It must be allowed to get, list and watch pods.
pub async fn inform(
    pods: Pods,
    client: Client,
    shutdown: CancellationToken,
) -> Result<(), InformerEnded> {
    let all = Api::<Seen>::all(client.clone());
    let events = watcher(all, watcher::Config::default()).default_backoff();
    pin_mut!(events);
    let mut questions = FuturesUnordered::new();
    loop {
        let room = QUESTIONS.saturating_sub(questions.len());
        for pod in pods.take_doubtful(room) {
            questions.push(ask(client.clone(), pod));
        }
        tokio::select! {
            () = shutdown.cancelled() => return Ok(()),
            event = events.next() => match event.ok_or(InformerEnded)? {
                Ok(event) => take(&pods, event),
                Err(error) => {
                    tracing::warn!(%error, "the watch of pods is interrupted; what is known stays");
                    pods.interrupted(error.to_string());
                }
            },
            Some((pod, answer)) = questions.next(), if !questions.is_empty() => match answer {
                Ok(traits) => pods.found(&pod, traits),
                Err(error) => {
                    tracing::debug!(%error, pod = %pod.name, "the API server was asked in vain");
                    pods.not_found_out(&pod);
                }
            },
            () = pods.doubt() => {}
        }
    }
}

fn take(pods: &Pods, event: Event<Seen>) {
    match event {
        Event::Init => pods.apply(PodEvent::Listing),
        Event::InitDone => pods.apply(PodEvent::Listed),
        Event::InitApply(pod) | Event::Apply(pod) => {
            if let Some((uid, traits)) = known(pod) {
                pods.apply(PodEvent::Present { uid, traits });
            }
        }
        Event::Delete(pod) => {
            if let Some((uid, _)) = known(pod) {
                pods.apply(PodEvent::Deleted { uid });
            }
        }
    }
}

/// What is kept of a pod. Every stored pod has a UID.
fn known(pod: Seen) -> Option<(Arc<str>, Traits)> {
    let uid = pod.metadata.uid?;
    let address = |at: &Address| at.ip.parse::<IpAddr>().ok().map(|ip| ip.to_canonical());
    let traits = Traits {
        labels: Labels::new(pod.metadata.labels.unwrap_or_default()),
        annotations: Labels::of_annotations(pod.metadata.annotations.unwrap_or_default()),
        addresses: pod.status.pod_ips.iter().filter_map(address).collect(),
    };
    Some((uid.into(), traits))
}

/// Asks about one pod: `None` when it is not there, or another has its name.
async fn ask(client: Client, pod: PodId) -> (PodId, Result<Option<Traits>, String>) {
    let api = Api::<Seen>::namespaced(client, &pod.namespace);
    let answer = match timeout(ANSWER, api.get_opt(&pod.name)).await {
        Ok(Ok(found)) => {
            let same = found.filter(|found| found.uid().as_deref() == Some(&*pod.uid));
            Ok(same.and_then(known).map(|(_, traits)| traits))
        }
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no answer within {ANSWER:?}")),
    };
    if answer.is_err() {
        sleep(AGAIN).await;
    }
    (pod, answer)
}
