//! Pods that ask for trust, and the authority's own end.

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, api::PostParams};
use serde_json::json;

use super::site::{Site, eventually, get};

#[tokio::test(flavor = "multi_thread")]
async fn private_a_pod_that_asks_never_starts_without_trust() {
    let mut site = Site::start(1, 1).await.expect("installed");
    if let Err(error) = never_without_trust(&mut site).await {
        panic!("{error:?}");
    }
}

async fn never_without_trust(site: &mut Site) -> Result<()> {
    site.namespace("shop").await?;
    let plain = json!({ "metadata": { "name": "plain" } });
    let api: Api<Namespace> = Api::all(site.cluster.client());
    api.create(&PostParams::default(), &serde_json::from_value(plain)?).await?;
    let pod = json!({ "metadata": { "generateName": "app-" } });

    let trusted = site.sandbox("shop", &pod).await?;
    ensure!(trusted.var("RULECAST_NAMESPACE").as_deref() == Some("shop"), "{:?}", trusted.env());
    let untouched = site.create_pod("plain", &pod).await?;
    ensure!(untouched.spec.is_some_and(|spec| spec.volumes.unwrap_or_default().is_empty()));

    // Without the authority: the one is refused, the other does not notice.
    site.authorities[0].kill().await?;
    let refused = site.create_pod("shop", &pod).await.expect_err("refused").to_string();
    ensure!(refused.contains("rulecast"), "{refused}");
    site.create_pod("plain", &pod).await?;
    let out = json!({
        "metadata": { "generateName": "app-", "labels": { "rulecast.io/inject": "false" } },
    });
    site.create_pod("shop", &out).await?;

    site.authorities[0].start()?;
    site.authorities[0].ready().await?;
    eventually(async || site.create_pod("shop", &pod).await).await?;

    // What was never to be told, was not.
    let (_, metrics) = get(site.authorities[0].http, "/metrics").await?;
    ensure!(metrics.contains("rulecast_ca_pods_total{verdict=\"injected\"} 1"), "{metrics}");
    for service in site.authorities.iter().chain(&site.planes) {
        let log = service.log();
        ensure!(!log.contains("eyJ") && !log.contains("PRIVATE KEY"), "{log}");
    }
    Ok(())
}
