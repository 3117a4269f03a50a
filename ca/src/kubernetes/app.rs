//! The wiring of what the authority does in a cluster besides issuing.

use std::convert::Infallible;

use kube::Client;
use rulecast_api::Code;
use rulecast_cluster::{ElectionConfig, Leadership, campaign};
use rulecast_runtime::{Supervisor, http};
use tokio_util::sync::CancellationToken;

use super::{
    KubernetesCa, LEASE,
    bundles::{self, BundlesConfig},
    keys::AuthoritySecret,
    serving, webhook,
};
use crate::{CaError, authority::AuthorityHandle, metrics::Metrics, place::Source};

/// A client of the cluster's API server.
pub(crate) async fn connect(config: &KubernetesCa) -> Result<Client, CaError> {
    rulecast_cluster::connect(&config.cluster).await.map_err(|error| {
        let text = error.to_string();
        // Its own code stands before it.
        let message = text.strip_prefix("RC0701: ").unwrap_or(&text).to_owned();
        CaError::new(Code::ConfigInvalid, message)
    })
}

/// What the authority is read from.
pub(crate) fn source(config: &KubernetesCa, client: &Client) -> Source {
    let (namespace, name) = (&config.namespace, &config.secret);
    let secret = AuthoritySecret::new(client.clone(), namespace, name, &config.trust_domain);
    Source::Secret(Box::new(secret))
}

/// What the tasks work with.
#[derive(Clone)]
pub(crate) struct Parts {
    pub(crate) client: Client,
    pub(crate) authority: AuthorityHandle,
    pub(crate) metrics: Metrics,
}

/// Starts the webhook, and what the leader does.
pub(crate) async fn spawn(
    config: &KubernetesCa,
    parts: Parts,
    supervisor: &Supervisor,
    shutdown: &CancellationToken,
) -> Result<(), CaError> {
    let mut configuration = None;
    if let Some(webhook) = &config.webhook {
        let listener = http::bind(webhook.listen).await?;
        let mut authority = parts.authority.subscribe();
        let first = authority.borrow_and_update().clone();
        let (certificate, renew_at) = serving::first(&first, &webhook.hosts)?;
        let keep = serving::keep(
            authority,
            webhook.hosts.clone(),
            certificate.clone(),
            renew_at,
            shutdown.clone(),
        );
        supervisor.spawn("webhook certificate", keep);
        let metrics = parts.metrics.clone();
        let serve =
            webhook::serve_on(listener, webhook.clone(), certificate, metrics, shutdown.clone());
        supervisor.spawn("webhook", serve);
        configuration = Some(webhook.configuration.clone());
    }
    if config.bundles.is_none() && configuration.is_none() {
        return Ok(());
    }
    // Gives the lead away when the leader's work has ended for any reason.
    let candidacy = shutdown.child_token();
    let election = ElectionConfig::new(&config.namespace, LEASE, &config.identity);
    let (leadership, running) = campaign(parts.client.clone(), election, candidacy.clone());
    supervisor.spawn("election", async {
        running.await;
        Ok::<_, Infallible>(())
    });
    let (bundles, shutdown) = (config.bundles.clone(), shutdown.clone());
    supervisor.spawn("leader", async move {
        let _candidacy = candidacy.drop_guard();
        lead(parts, bundles, configuration, leadership, shutdown).await;
        Ok::<_, Infallible>(())
    });
    Ok(())
}

/// Does the leader's work whenever this replica leads.
async fn lead(
    parts: Parts,
    bundles: Option<BundlesConfig>,
    configuration: Option<String>,
    mut leadership: Leadership,
    shutdown: CancellationToken,
) {
    loop {
        tokio::select! {
            () = leadership.wait() => {}
            () = shutdown.cancelled() => return,
        }
        let term = shutdown.child_token();
        let _term = term.clone().drop_guard();
        let bundles = async {
            match &bundles {
                Some(config) => bundles::keep(&parts, config, term.clone()).await,
                None => term.cancelled().await,
            }
        };
        let webhook = async {
            match &configuration {
                Some(name) => {
                    let roots = serving::roots(&parts.authority, term.clone());
                    let keep = webhook::keep_ca_bundle(
                        parts.client.clone(),
                        name.clone(),
                        roots.1,
                        term.clone(),
                    );
                    tokio::join!(roots.0, keep);
                }
                None => term.cancelled().await,
            }
        };
        let lost = async {
            while leadership.leads() {
                leadership.changed().await;
            }
        };
        // What is under way is dropped: another replica may lead already.
        tokio::select! {
            _ = async { tokio::join!(bundles, webhook) } => {}
            () = lost => {}
        }
        parts.metrics.bundles_failing(0);
        if shutdown.is_cancelled() {
            return;
        }
    }
}
