//! The commands as a person uses them.

use anyhow::{Context, Result, ensure};

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
