//! Watches the pods of a cluster: metadata alone, in all namespaces.

use std::{sync::Arc, time::Duration};

use futures_util::{StreamExt as _, pin_mut, stream::FuturesUnordered};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, ResourceExt as _,
    core::PartialObjectMeta,
    runtime::{
        WatchStreamExt as _,
        watcher::{self, Event, watcher},
    },
};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{PodEvent, PodId, Pods};
use crate::scope::Labels;

/// Questions about single pods that are under way at once.
const QUESTIONS: usize = 8;
/// How long one may take.
const ANSWER: Duration = Duration::from_secs(4);
/// Before one that failed is asked again.
const AGAIN: Duration = Duration::from_millis(500);

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
    let all = Api::<PartialObjectMeta<Pod>>::all(client.clone());
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
                Ok(labels) => pods.found(&pod, labels),
                Err(error) => {
                    tracing::debug!(%error, pod = %pod.name, "the API server was asked in vain");
                    pods.not_found_out(&pod);
                }
            },
            () = pods.doubt() => {}
        }
    }
}

fn take(pods: &Pods, event: Event<PartialObjectMeta<Pod>>) {
    match event {
        Event::Init => pods.apply(PodEvent::Listing),
        Event::InitDone => pods.apply(PodEvent::Listed),
        Event::InitApply(pod) | Event::Apply(pod) => {
            if let Some((uid, labels)) = known(pod) {
                pods.apply(PodEvent::Present { uid, labels });
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
fn known(pod: PartialObjectMeta<Pod>) -> Option<(Arc<str>, Labels)> {
    let uid = pod.metadata.uid?;
    Some((uid.into(), Labels::new(pod.metadata.labels.unwrap_or_default())))
}

/// Asks about one pod: `None` when it is not there, or another has its name.
async fn ask(client: Client, pod: PodId) -> (PodId, Result<Option<Labels>, String>) {
    let api = Api::<PartialObjectMeta<Pod>>::namespaced(client, &pod.namespace);
    let answer = match timeout(ANSWER, api.get_opt(&pod.name)).await {
        Ok(Ok(found)) => {
            let same = found.filter(|found| found.uid().as_deref() == Some(&*pod.uid));
            Ok(same.and_then(known).map(|(_, labels)| labels))
        }
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no answer within {ANSWER:?}")),
    };
    if answer.is_err() {
        sleep(AGAIN).await;
    }
    (pod, answer)
}
