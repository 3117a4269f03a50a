//! A breaker, from a file of rules to the calls of a client: it leaves out the endpoint that
//! cannot be reached, with a plane and without.

use anyhow::{Context, Result, ensure};
use rulecast_sdk::{Client, Endpoint, EndpointSet, decision::Effect};
use tokio::net::{TcpListener, TcpStream};

use crate::site::{Site, eventually, rule};

const SERVICE: &str = "com.example.stock";

fn breaker(annotation: &str, more: &str) -> String {
    format!(
        "apiVersion: rulecast.io/v1alpha1\nkind: CircuitBreaker\n\
         metadata: {{name: stock, namespace: shop{annotation}}}\n\
         spec: {{scope: service, key: {SERVICE}, consecutiveErrors: 3, openFor: 1h{more}}}\n"
    )
}

/// Calls so often, each time the first endpoint that is left or the last; gives how many calls
/// failed.
async fn call(client: &Client, endpoints: &EndpointSet, times: usize) -> Result<usize> {
    let request = client.request(SERVICE);
    let mut failed = 0;
    for i in 0..times {
        let left = client.route(&request, endpoints).endpoints;
        let chosen = if i % 2 == 0 { left.first() } else { left.last() };
        let chosen = *chosen.context("one is always left")?;
        let attempt = client.attempt(SERVICE, endpoints, chosen).context("what is left may go")?;
        match TcpStream::connect(endpoints.endpoints()[chosen as usize].address()).await {
            Ok(_) => attempt.succeeded(),
            Err(_) => {
                failed += 1;
                attempt.failed();
            }
        }
    }
    Ok(failed)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_leave_an_endpoint_that_fails_with_a_plane_and_without() -> Result<()> {
    let mut site = Site::start().await?;
    site.write_rule("stock.yaml", &breaker("", ""))?;
    let client = site.client("a")?.connect().await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let gone = TcpListener::bind("127.0.0.1:0").await?.local_addr()?;
    let endpoint = |port| Endpoint::new("127.0.0.1", port);
    let both = [endpoint(gone.port()), endpoint(listener.local_addr()?.port())];
    let endpoints = EndpointSet::new(both.clone())?;
    let decide = || client.route(&client.request(SERVICE), &endpoints);
    let does = async |effect: Effect| {
        let ruled = async || {
            let rules = decide().rules;
            ensure!(rules.iter().any(|rule| rule.effect == effect), "{rules:?}");
            Ok(())
        };
        eventually(ruled).await
    };
    does(Effect::Skipped).await?;

    ensure!(call(&client, &endpoints, 40).await? == 3, "after three failures it is left out");
    ensure!(decide().endpoints == [1]);
    let described = client.explain(&client.request(SERVICE), &endpoints).text;
    ensure!(described.contains(&format!("{gone} has been shut")), "{described}");

    // Neither the end of the plane, nor another set, nor a change of rules makes it forget.
    site.kill_plane().await?;
    ensure!(call(&client, &endpoints, 10).await? == 0);
    ensure!(client.route(&client.request(SERVICE), &EndpointSet::new(both)?).endpoints == [1]);
    site.start_plane().await?;
    site.write_rule("stock.yaml", &breaker("", ", trialCalls: 2"))?;
    site.write_rule("stock-route.yaml", &rule("stock", 1, "=> host=127.0.0.1"))?;
    eventually(async || {
        ensure!(decide().rules.len() == 2, "both rules speak");
        Ok(())
    })
    .await?;
    ensure!(call(&client, &endpoints, 10).await? == 0);

    // Tried as a shadow it says what it would do; without it all are left.
    let shadow = ", annotations: {rulecast.io/enforcement: shadow}";
    site.write_rule("stock.yaml", &breaker(shadow, ", trialCalls: 2"))?;
    does(Effect::WouldApply).await?;
    ensure!(decide().endpoints == [0, 1]);
    std::fs::remove_file(site.path("rules/stock.yaml"))?;
    eventually(async || {
        ensure!(decide().rules.len() == 1 && client.breakers().is_empty());
        Ok(())
    })
    .await
}
