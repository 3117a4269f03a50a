//! The whole way of a rule: from `kubectl apply` to the pods, and back onto its status.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use kube::{
    ResourceExt as _,
    api::{DynamicObject, Patch, PatchParams, PostParams},
};
use rulecast_sdk::client::Client;
use serde_json::{Value, json};
use tokio::{sync::watch, task::JoinSet};

use super::site::{LIMIT, Site, connect, eventually, ok, repository, rule, within};

const CLIENTS: usize = 20;
const CHANGES: usize = 60;
const TYPE: &str = "dubbo.apache.org/v1alpha1/ConditionRoute";

/// Promised: written to applied by all, counted from the API server's answer.
const APPLIED: Duration = Duration::from_millis(250);
/// Promised: counts on the rule.
const COUNTED: Duration = Duration::from_secs(2);

/// When a client held which revision.
struct Watcher {
    seen: watch::Receiver<BTreeMap<i64, Instant>>,
    client: Client,
}

impl Watcher {
    fn new(client: Client) -> Self {
        let (sender, seen) = watch::channel(BTreeMap::new());
        let mut changes = client.changes();
        tokio::spawn(async move {
            loop {
                let revision = changes.borrow_and_update().kind(TYPE).map_or(0, |k| k.revision);
                sender.send_if_modified(|seen: &mut BTreeMap<_, _>| {
                    let new = !seen.contains_key(&revision);
                    seen.entry(revision).or_insert_with(Instant::now);
                    new
                });
                if changes.changed().await.is_err() {
                    return;
                }
            }
        });
        Self { seen, client }
    }

    /// When it first held this revision or a later one; waits for it.
    async fn held(&self, revision: i64) -> Result<Instant> {
        let mut seen = self.seen.clone();
        let at = |seen: &BTreeMap<i64, Instant>| seen.range(revision..).map(|(_, at)| *at).min();
        let seen = tokio::time::timeout(LIMIT, seen.wait_for(|seen| at(seen).is_some()))
            .await
            .with_context(|| format!("revision {revision}: {}", self.client.status()))??;
        at(&seen).context("just seen")
    }
}

fn revision(object: &DynamicObject) -> Result<i64> {
    Ok(object.resource_version().context("resourceVersion")?.parse()?)
}

/// The condition of a rule, where it speaks of the current generation.
pub(crate) fn condition(object: &DynamicObject, kind: &str) -> Option<(String, String)> {
    let conditions = object.data["status"]["conditions"].as_array()?;
    let found = conditions.iter().find(|c| c["type"] == kind)?;
    let current = found["observedGeneration"].as_i64() == object.metadata.generation;
    current.then(|| {
        let text = |name: &str| found[name].as_str().unwrap_or_default().to_owned();
        (text("status"), text("reason"))
    })
}

async fn clients(site: &Site, namespace: &str) -> Result<Vec<Watcher>> {
    let mut joined = JoinSet::new();
    for n in 0..CLIENTS {
        let labels = json!({ "app.kubernetes.io/name": "shop" });
        let pod = json!({ "metadata": { "generateName": format!("shop-{n}-"), "labels": labels } });
        let sandbox = site.sandbox(namespace, &pod).await?;
        joined.spawn(async move { connect(&sandbox).await.map(|client| (client, sandbox)) });
    }
    let mut watchers = Vec::new();
    while let Some(client) = joined.join_next().await {
        let (client, sandbox) = client??;
        let id = client.status().identity.spiffe_id.context("an identity")?;
        ensure!(id == format!("spiffe://kube.test/ns/{namespace}/sa/app"), "{id}");
        ensure!(sandbox.var("RULECAST_APP").as_deref() == Some("shop"), "{:?}", sandbox.env());
        watchers.push(Watcher::new(client));
    }
    Ok(watchers)
}

#[tokio::test(flavor = "multi_thread")]
async fn private_alone_from_kubectl_to_pods_and_back() {
    let site = Site::start(2, 1).await.expect("installed");
    if let Err(error) = from_kubectl_to_pods(&site).await {
        panic!("{error:?}");
    }
}

async fn from_kubectl_to_pods(site: &Site) -> Result<()> {
    site.namespace("shop").await?;
    let rules = site.rules("shop");

    // Nobody is there yet: programmed, since nobody lacks it.
    rules.create(&PostParams::default(), &rule("shop", "orders", "com.Order", "r0")).await?;
    ok(
        &site.cluster,
        &["wait", "--for=condition=Programmed", "--timeout=20s", "-n", "shop", "cd/orders"],
    )
    .await?;
    let first = rules.get("orders").await?;
    ensure!(condition(&first, "Programmed") == Some(("True".into(), "NoClients".into())));
    ensure!(condition(&first, "Accepted") == Some(("True".into(), "Accepted".into())));

    let watchers = clients(site, "shop").await?;
    let mut samples = Vec::new();
    let mut counted = Vec::new();
    for change in 0..CHANGES {
        let spec = json!({ "spec": { "conditions": [format!("=> region=r{}", change + 1)] } });
        let written = rules.patch("orders", &PatchParams::default(), &Patch::Merge(&spec)).await?;
        let answered = Instant::now();
        let revision = revision(&written)?;
        for watcher in &watchers {
            samples.push(watcher.held(revision).await?.saturating_duration_since(answered));
        }
        // The status of every tenth: the API server is asked no more than needed.
        if change % 10 == 0 {
            within(COUNTED * 5, async || {
                let now = rules.get("orders").await?;
                let status = &now.data["status"];
                ensure!(
                    status["observedGeneration"].as_i64() == written.metadata.generation
                        && status["matched"] == json!(CLIENTS)
                        && status["applied"] == json!(CLIENTS)
                        && condition(&now, "Programmed") == Some(("True".into(), "Applied".into())),
                    "{status}"
                );
                Ok(())
            })
            .await?;
            counted.push(answered.elapsed());
        }
    }
    samples.sort();
    counted.sort();
    let p99 = samples[samples.len() * 99 / 100 - 1];
    let (median, slowest) = (samples[samples.len() / 2], counted[counted.len() - 1]);
    println!(
        "{CLIENTS} clients, {CHANGES} changes: applied p50 {median:?} p99 {p99:?}; counted within {slowest:?}"
    );
    ensure!(p99 <= APPLIED, "p99 {p99:?}");
    ensure!(slowest <= COUNTED, "counts came after {slowest:?}");

    reads_well(site).await?;
    a_bad_rule_says_so(site, &watchers).await?;
    idle_writes_nothing(site).await
}

async fn reads_well(site: &Site) -> Result<()> {
    let table = ok(&site.cluster, &["get", "cd", "-n", "shop"]).await?;
    let (head, row) = table.split_once('\n').context("two lines")?;
    let head: Vec<&str> = head.split_whitespace().collect();
    ensure!(head == ["NAME", "KEY", "ENABLED", "MATCHED", "APPLIED", "REJECTED", "AGE"], "{table}");
    let row: Vec<&str> = row.split_whitespace().collect();
    ensure!(row[..6] == ["orders", "com.Order", "true", "20", "20", "0"], "{table}");
    let spec = ok(&site.cluster, &["explain", "conditionroute.spec"]).await?;
    ensure!(spec.contains("configVersion") && spec.contains("conditions"), "{spec}");
    // As Dubbo's users write them.
    let examples = repository().join("examples/dubbo");
    site.namespace("pay").await?;
    ok(&site.cluster, &["apply", "-f", &examples.to_string_lossy()]).await?;
    ok(
        &site.cluster,
        &["wait", "--for=condition=Programmed", "--timeout=20s", "-n", "shop", "cd", "--all"],
    )
    .await?;
    Ok(())
}

/// The schema cannot see into a condition's text; the plane does, and keeps the last good one.
async fn a_bad_rule_says_so(site: &Site, watchers: &[Watcher]) -> Result<()> {
    let rules = site.rules("shop");
    let held = |watcher: &Watcher| {
        let status = watcher.client.status();
        status.kind(TYPE).and_then(|kind| kind.rules.get("orders/shop").copied())
    };
    let before = held(&watchers[0]).context("held")?;
    let spec = json!({ "spec": { "conditions": ["=> region==r1"] } });
    rules.patch("orders", &PatchParams::default(), &Patch::Merge(&spec)).await?;
    let bad = eventually(async || {
        let now = rules.get("orders").await?;
        ensure!(condition(&now, "Accepted") == Some(("False".into(), "Invalid".into())), "{now:?}");
        Ok(now)
    })
    .await?;
    let status = &bad.data["status"];
    let text = status["conditions"].to_string();
    ensure!(text.contains("RC0201") && text.contains("spec.conditions[0]"), "{text}");
    ensure!(status["lastAccepted"]["spec"]["conditions"] == json!(["=> region=r60"]), "{status}");
    ensure!(
        watchers.iter().all(|watcher| held(watcher) == Some(before)),
        "the last good one stays"
    );

    let spec = json!({ "spec": { "conditions": ["=> region=good"] } });
    let good = rules.patch("orders", &PatchParams::default(), &Patch::Merge(&spec)).await?;
    for watcher in watchers {
        watcher.held(revision(&good)?).await?;
    }
    eventually(async || {
        let now = rules.get("orders").await?;
        ensure!(condition(&now, "Accepted") == Some(("True".into(), "Accepted".into())), "{now:?}");
        ensure!(now.data["status"]["lastAccepted"] == Value::Null, "{now:?}");
        Ok(())
    })
    .await
}

/// Nothing changes, so for a minute nobody writes anything but the Leases.
async fn idle_writes_nothing(site: &Site) -> Result<()> {
    let versions = async || -> Result<BTreeMap<String, Option<String>>> {
        let list = site.rules("shop").list(&Default::default()).await?;
        Ok(list.into_iter().map(|o| (o.name_any(), o.resource_version())).collect())
    };
    // Counts that came last are written when they have lasted.
    tokio::time::sleep(Duration::from_secs(15)).await;
    let before = versions().await?;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let after = versions().await?;
    ensure!(before == after, "{before:?}\n{after:?}");
    Ok(())
}
