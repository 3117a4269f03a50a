//! Many rules.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use kube::api::PostParams;
use serde_json::json;

use super::site::{Site, connect, eventually, rule};

const RULES: usize = 10_000;

/// Promised: resident memory of the plane, and the time from its start to ready.
const MEMORY: u64 = 150 << 20;
const READY: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread")]
async fn private_alone_ten_thousand_rules() {
    let mut site = Site::start(1, 1).await.expect("installed");
    if let Err(error) = ten_thousand_rules(&mut site).await {
        panic!("{error:?}");
    }
}

async fn ten_thousand_rules(site: &mut Site) -> Result<()> {
    site.namespace("shop").await?;
    site.planes[0].kill().await?;
    let rules = site.rules("shop");
    stream::iter(0..RULES)
        .map(|n| {
            let rules = rules.clone();
            async move {
                let mut object = rule("shop", &format!("rule-{n}"), &format!("com.S{n}"), "r0");
                // About 1 KB a rule.
                let conditions: Vec<String> = (0..16)
                    .map(|c| format!("method=m{c}-{n} & region=hangzhou => env=gray & zone=z{c}"))
                    .collect();
                object.data["spec"]["conditions"] = json!(conditions);
                rules.create(&PostParams::default(), &object).await
            }
        })
        .buffer_unordered(16)
        .try_for_each(|_| async { Ok(()) })
        .await?;

    let plane = &mut site.planes[0];
    plane.start()?;
    let started = Instant::now();
    plane.ready().await?;
    let ready = started.elapsed();
    let alone = memory(plane.pid().context("a process")?)?;

    let pod = json!({ "metadata": { "generateName": "shop-" } });
    let sandbox = site.sandbox("shop", &pod).await?;
    let client = connect(&sandbox).await?;
    eventually(async || {
        ensure!(client.status().items() == RULES, "{}", client.status().items());
        Ok(())
    })
    .await?;
    let serving = memory(site.planes[0].pid().context("a process")?)?;
    println!(
        "{RULES} rules: ready after {ready:?}, {} MiB, with a client {} MiB",
        alone >> 20,
        serving >> 20
    );
    ensure!(ready <= READY, "ready after {ready:?}");
    ensure!(serving <= MEMORY, "{} MiB", serving >> 20);
    client.shutdown().await;
    Ok(())
}

/// Resident memory of a process, bytes.
fn memory(pid: u32) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("VmRSS")?;
    let kib: u64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kib << 10)
}
