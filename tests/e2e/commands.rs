//! The commands as a person uses them.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rulecast_sdk::{Client, Inbound, Tuning};

use crate::site::{Site, eventually, rule, rulecast, rulecast_ok};

#[test]
fn the_demo_script_passes_its_own_checks() -> Result<()> {
    let out = rulecast_ok(&["demo", "--once"])?;
    let last = out.lines().last().context("no output")?;
    let figures: serde_json::Value =
        serde_json::from_str(last).with_context(|| format!("the last line is no JSON: {last}"))?;
    let steps: Vec<&str> = figures["steps"]
        .as_array()
        .context("steps")?
        .iter()
        .filter_map(|step| step["step"].as_str())
        .collect();
    let story = [
        "start", "appear", "change", "break", "mend", "deny", "turn", "limit", "kill", "restart",
        "resume", "canary", "delete", "stop",
    ];
    ensure!(steps == story, "{steps:?}");
    Ok(())
}

#[test]
fn options_print_as_they_can_be_read_again() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("dds.toml");
    for service in ["ca", "dds"] {
        let printed = rulecast_ok(&[service, "run", "--listen", "127.0.0.1:9", "--print-config"])?;
        ensure!(printed.contains("listen = \"127.0.0.1:9\""), "{printed}");
        std::fs::write(&file, &printed)?;
        let path = file.to_str().context("path")?;
        ensure!(printed == rulecast_ok(&[service, "--config", path, "--print-config"])?);
    }
    std::fs::write(&file, "listne = \"127.0.0.1:9\"\n")?;
    let out = rulecast(&["dds", "--config", file.to_str().context("path")?])?;
    let error = String::from_utf8_lossy(&out.stderr);
    ensure!(!out.status.success() && error.contains("listne"), "{error}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn status_tells_who_holds_what_and_what_is_refused() -> Result<()> {
    let mut site = Site::start().await?;
    let client = site.client("status")?.service("com.example.orders").connect().await?;
    site.write_rule("orders.yaml", &rule("orders", 1, "method=get => region=a"))?;
    site.write_rule("stock.yaml", &rule("stock", 1, "method=get => region=a"))?;
    let socket = site.socket()?;
    eventually(async || {
        let table = rulecast_ok(&["status", "--socket", &socket])?;
        ensure!(row(&table, "orders/shop")? == ["1", "1", "0"], "{table}");
        // The client does not call this one, so it never gets it.
        ensure!(row(&table, "stock/shop")? == ["0", "0", "0"], "{table}");
        Ok(())
    })
    .await?;
    ensure!(client.status().items() == 1);

    site.write_rule("orders.yaml", &rule("orders", 2, "method== => region=a"))?;
    eventually(async || {
        let out = rulecast(&["status", "--socket", &socket])?;
        let text = String::from_utf8(out.stdout)?;
        ensure!(out.status.code() == Some(1), "{text}");
        ensure!(
            text.contains("orders.yaml:4:") && text.contains("spec.conditions[0]"),
            "the problem's place is missing: {text}"
        );
        ensure!(row(&text, "orders/shop")? == ["1", "1", "0"], "{text}");
        Ok(())
    })
    .await?;
    let clients = rulecast_ok(&["clients", "--socket", &socket])?;
    ensure!(clients.contains("spiffe://e2e.test/ns/shop/app/shop-frontend"), "{clients}");

    client.shutdown().await;
    site.stop_plane().await?;
    site.stop_authority().await?;
    let out = rulecast(&["status", "--socket", &socket])?;
    let error = String::from_utf8_lossy(&out.stderr);
    ensure!(!out.status.success() && error.contains("RC0702"), "{error}");
    Ok(())
}

/// Matched, applied and rejected of a rule in the table of `rulecast status`.
fn row<'a>(table: &'a str, key: &str) -> Result<Vec<&'a str>> {
    let line = table
        .lines()
        .find(|line| line.split_whitespace().nth(1) == Some(key))
        .with_context(|| format!("no rule {key} in\n{table}"))?;
    Ok(line.split_whitespace().skip(4).take(3).collect())
}

const CALLER: &str = "spiffe://e2e.test/ns/shop/app/web";

fn policy(metadata: &str) -> String {
    format!(
        "apiVersion: dubbo.apache.org/v1alpha1\nkind: AuthorizationPolicy\n\
         metadata: {{name: readers, namespace: shop{metadata}}}\n\
         spec: {{action: ALLOW, rules: [{{when: [{{key: method, values: [{{type: equals, \
         value: get}}]}}]}}]}}\n"
    )
}

/// How many of these calls are allowed.
fn allowed(client: &Client, methods: &[&str]) -> usize {
    let call = Inbound::new().principal(CALLER).path("/orders");
    methods.iter().filter(|method| client.authorize(&call.method(method)).is_allowed()).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rule_in_shadow_tells_what_it_would_do_and_then_does_it() -> Result<()> {
    let site = Site::start().await?;
    let mut tuning = Tuning::default();
    tuning.report_interval = Some(Duration::from_millis(50));
    site.write_rule("readers.yaml", &policy(", annotations: {rulecast.io/enforcement: shadow}"))?;
    let client = site.client("shadow")?.tuning(tuning).connect().await?;
    eventually(async || {
        ensure!(client.status().items() == 1);
        Ok(())
    })
    .await?;
    ensure!(allowed(&client, &["get", "put", "get", "put", "put"]) == 5);
    let socket = site.socket()?;
    let says = async |wanted: &str| {
        eventually(async || {
            let status = rulecast_ok(&["status", "--socket", &socket])?;
            ensure!(status.contains(wanted), "{wanted}\nis not in\n{status}");
            Ok(())
        })
        .await
    };
    let would = format!(
        "AuthorizationPolicy readers/shop (shadow): would apply to 2, would deny 3 of 5 calls; \
         last: would deny put /orders of {CALLER}\n"
    );
    says(&would).await?;
    let metrics = site.metrics().await?;
    let sum =
        "rulecast_dds_verdicts_total{kind=\"AuthorizationPolicy\",verdict=\"would_deny\"} 3\n";
    ensure!(metrics.contains(sum), "{metrics}");
    ensure!(!metrics.contains("readers"), "single rules are not named to scrapers:\n{metrics}");

    site.write_rule("readers.yaml", &policy(""))?;
    eventually(async || {
        ensure!(allowed(&client, &["put"]) == 0);
        Ok(())
    })
    .await?;
    ensure!(allowed(&client, &["get"]) == 1);
    says("AuthorizationPolicy readers/shop: applied to 1").await
}
