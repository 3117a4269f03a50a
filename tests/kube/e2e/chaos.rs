//! Everything restarts, at random, while rules change.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams},
};
use rulecast_sdk::{client::Client, status::ItemDigest};
use serde_json::json;

use super::{
    site::{SYSTEM, Site, eventually, within},
    way::condition,
};

const RULES: u32 = 30;
const CLIENTS: usize = 6;
const TYPE: &str = "dubbo.apache.org/v1alpha1/ConditionRoute";

/// How long things break: a minute, or what the soak says.
fn span() -> Duration {
    let seconds = std::env::var("RULECAST_SOAK_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(60))
}

#[tokio::test(flavor = "multi_thread")]
async fn private_everything_restarts_and_nothing_is_lost() {
    let mut site = Site::start(2, 2).await.expect("installed");
    if let Err(error) = everything_restarts(&mut site).await {
        panic!("{error:?}");
    }
}

fn held(client: &Client) -> BTreeMap<String, ItemDigest> {
    client.status().kind(TYPE).map(|kind| kind.rules.clone()).unwrap_or_default()
}

async fn transitions(site: &Site) -> Result<i32> {
    let leases: Api<Lease> = Api::namespaced(site.cluster.client(), SYSTEM);
    let lease = leases.get("rulecast-dds").await?;
    Ok(lease.spec.and_then(|spec| spec.lease_transitions).unwrap_or_default())
}

/// The plane that leads.
async fn holder(site: &Site) -> Result<String> {
    let leases: Api<Lease> = Api::namespaced(site.cluster.client(), SYSTEM);
    eventually(async || {
        let spec = leases.get("rulecast-dds").await?.spec;
        spec.and_then(|spec| spec.holder_identity).filter(|h| !h.is_empty()).context("a holder")
    })
    .await
}

async fn client(site: &Site, replica: usize) -> Result<Client> {
    let pod = json!({ "metadata": { "generateName": "app-" } });
    let sandbox = site.sandbox("shop", &pod).await?;
    let plane = site.listen[replica].to_string();
    let vars = |name: &str| match name {
        "RULECAST_DDS_ADDRESS" => Some(plane.clone().into()),
        _ => sandbox.var(name).map(Into::into),
    };
    Ok(rulecast_sdk::Rulecast::from_vars(vars)?.connect().await?)
}

async fn everything_restarts(site: &mut Site) -> Result<()> {
    let seed = std::env::var("SEED")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or_else(|| fastrand::u64(..));
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    site.namespace("shop").await?;
    let mut clients = Vec::new();
    for n in 0..CLIENTS {
        clients.push(client(site, n % 2).await?);
    }
    let before = transitions(site).await?;

    // Somebody goes on changing rules; what fails is simply tried again with the next.
    let rules = site.rules("shop");
    let stop = tokio_util::sync::CancellationToken::new();
    let writer = {
        let (rules, stop, mut random) = (rules.clone(), stop.clone(), random.fork());
        tokio::spawn(async move {
            let mut written = 0_u32;
            while !stop.is_cancelled() {
                let name = format!("r{}", random.u32(..RULES));
                let done = if random.u32(..8) == 0 {
                    rules.delete(&name, &DeleteParams::default()).await.is_ok()
                } else {
                    let change =
                        super::site::rule("shop", &name, "com.S", &format!("r{}", random.u32(..)));
                    let params = PatchParams::apply("chaos").force();
                    rules.patch(&name, &params, &Patch::Apply(&change)).await.is_ok()
                };
                written += u32::from(done);
                tokio::time::sleep(Duration::from_millis(30)).await;
            }
            written
        })
    };

    let (since, mut faults) = (Instant::now(), BTreeMap::<&str, u32>::new());
    // Each at least once, then at random.
    let mut order = vec!["api server", "etcd", "ca", "dds leader"];
    random.shuffle(&mut order);
    while since.elapsed() < span() || !order.is_empty() {
        let fault = order.pop().unwrap_or_else(|| {
            *random.choice(&["api server", "etcd", "ca", "dds", "dds leader"]).expect("some")
        });
        *faults.entry(fault).or_default() += 1;
        match fault {
            "api server" => site.cluster.restart_api_server().await?,
            "etcd" => {
                site.cluster.kill_etcd().await?;
                tokio::time::sleep(Duration::from_millis(random.u64(..2000))).await;
                site.cluster.start_etcd().await?;
            }
            "ca" => {
                let ca = random.usize(..site.authorities.len());
                site.authorities[ca].kill().await?;
                site.authorities[ca].start()?;
            }
            "dds leader" => {
                // A pod that comes instead has another name, so the other one takes the lead.
                let before = holder(site).await?;
                let plane = usize::from(before == "dds-1");
                site.planes[plane].kill().await?;
                eventually(async || {
                    ensure!(holder(site).await? != before, "{before} holds the Lease");
                    Ok(())
                })
                .await?;
                site.planes[plane].start()?;
            }
            _ => {
                let plane = random.usize(..site.planes.len());
                site.planes[plane].kill().await?;
                site.planes[plane].start()?;
            }
        }
        tokio::time::sleep(Duration::from_millis(random.u64(500..4000))).await;
    }
    stop.cancel();
    let written = writer.await?;
    println!("{faults:?}, {written} changes in {:?}", since.elapsed());
    converges(site, &clients, before, written).await
}

async fn converges(site: &Site, clients: &[Client], before: i32, written: u32) -> Result<()> {
    ensure!(written > 0, "nothing was written");
    for service in site.authorities.iter().chain(&site.planes) {
        service.ready().await?;
    }
    let rules = site.rules("shop");
    let wanted: BTreeSet<String> = eventually(async || {
        let list = rules.list(&Default::default()).await?;
        Ok(list.into_iter().map(|rule| format!("{}/shop", rule.name_any())).collect())
    })
    .await?;
    // One that comes now gets exactly what there is, and so must those have that lived through it.
    let late = [client(site, 0).await?, client(site, 1).await?];
    let fresh = held(&late[0]);
    ensure!(fresh.keys().cloned().collect::<BTreeSet<_>>() == wanted, "{fresh:?} {wanted:?}");
    for client in clients.iter().chain(&late) {
        eventually(async || {
            ensure!(held(client) == fresh, "{}\n{}", client.status(), site.logs());
            ensure!(client.status().connected, "{}", client.status());
            Ok(())
        })
        .await?;
    }
    // Every rule says so.
    within(Duration::from_secs(60), async || {
        for rule in rules.list(&Default::default()).await? {
            ensure!(
                condition(&rule, "Programmed").is_some_and(|(status, _)| status == "True"),
                "{rule:?}"
            );
        }
        Ok(())
    })
    .await?;
    ensure!(transitions(site).await? > before, "the lead never moved");
    // And then there is quiet: what is still written are counts that have lasted, once.
    let versions = async || -> Result<BTreeMap<String, Option<String>>> {
        let list = rules.list(&Default::default()).await?;
        Ok(list.into_iter().map(|o| (o.name_any(), o.resource_version())).collect())
    };
    within(Duration::from_secs(60), async || {
        let one = versions().await?;
        tokio::time::sleep(Duration::from_secs(12)).await;
        ensure!(one == versions().await?, "statuses are still written");
        Ok(())
    })
    .await
}
