//! What rules do to real calls between processes of the shop.

use std::{
    collections::BTreeMap,
    fs,
    net::{SocketAddr, TcpListener},
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use rulecast_sdk::{
    Client, Endpoint, EndpointSet, channel::GovernedChannel, client::ClientBuilder,
};
use rulecast_shop::proto::{GetItemRequest, stock_client::StockClient};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    process::Child,
    task::JoinSet,
};
use tonic::Code;

use crate::site::{RULECAST, Site, eventually, terminate};

const STOCK: &str = "shop.v1.Stock";

/// A process of Stock.
struct Server {
    address: SocketAddr,
    version: &'static str,
    process: Child,
}

impl Server {
    /// Starts one; ready when it answers its probe.
    async fn start(site: &Site, name: &str, version: &'static str) -> Result<Self> {
        let held = [TcpListener::bind("127.0.0.1:0")?, TcpListener::bind("127.0.0.1:0")?];
        let [address, http] = [held[0].local_addr()?, held[1].local_addr()?];
        drop(held);
        let token = site.path(&format!("{name}.token"));
        fs::write(&token, site.token("shop", "shop-stock")?)?;
        let log = fs::File::create(site.path(&format!("{name}.log")))?;
        let process = tokio::process::Command::new(RULECAST)
            .args(["shop", "stock", "--listen", &address.to_string(), "--http", &http.to_string()])
            .args(["--service-version", version])
            .env("RULECAST_CA_ADDRESS", site.ca.to_string())
            .env("RULECAST_DDS_ADDRESS", site.dds.to_string())
            .env("RULECAST_NAMESPACE", "shop")
            .env("RULECAST_APP", "shop-stock")
            .env("RULECAST_TOKEN_FILE", &token)
            .env("RULECAST_STATE", site.path(name))
            .env("RULECAST_TRUST_BUNDLE", "")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .kill_on_drop(true)
            .spawn()?;
        let ready = eventually(async || {
            let mut probe = TcpStream::connect(http).await?;
            probe.write_all(b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n").await?;
            let mut answer = [0; 12];
            probe.read_exact(&mut answer).await?;
            ensure!(&answer == b"HTTP/1.1 200", "it answers {}", String::from_utf8_lossy(&answer));
            Ok(())
        });
        ready.await.with_context(|| {
            fs::read_to_string(site.path(&format!("{name}.log"))).unwrap_or_default()
        })?;
        Ok(Self { address, version, process })
    }

    fn endpoint(&self) -> Endpoint {
        Endpoint::new(self.address.ip().to_string(), self.address.port())
            .with("version", self.version)
            .with("application", "shop-stock")
    }
}

fn caller(site: &Site, application: &str) -> Result<ClientBuilder> {
    Ok(Client::builder()
        .ca(site.ca.to_string())
        .plane(site.dds.to_string())
        .namespace("shop")
        .application(application)
        .join_token(site.token("shop", application)?)
        .service(STOCK)
        .state_dir(site.path(application)))
}

fn channel(client: &Client, servers: &[&Server]) -> Result<GovernedChannel> {
    let endpoints = EndpointSet::new(servers.iter().map(|server| server.endpoint()))?;
    Ok(GovernedChannel::builder(client, STOCK).endpoints(endpoints).channel())
}

/// One call; the version of the server that answers.
async fn call(channel: &GovernedChannel) -> Result<String, tonic::Status> {
    let request = GetItemRequest { item: "apple".into() };
    let item = StockClient::new(channel.clone()).get_item(request).await?.into_inner();
    Ok(item.server.map(|server| server.version).unwrap_or_default())
}

/// A policy of namespace shop over Stock that refuses whom it does not name.
fn only(caller: &str) -> String {
    format!(
        "apiVersion: dubbo.apache.org/v1alpha1\nkind: AuthorizationPolicy\n\
         metadata: {{name: stock-callers, namespace: shop}}\n\
         spec: {{action: DENY, rules: [{{from: {{notPrincipals: \
         [\"spiffe://e2e.test/ns/shop/app/{caller}\"]}}, \
         to: {{principals: [\"spiffe://e2e.test/ns/shop/app/shop-stock\"]}}}}]}}\n"
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_call_follows_the_policy_without_a_restart() -> Result<()> {
    let site = Site::start().await?;
    site.write_rule("callers.yaml", &only("shop-orders"))?;
    let server = Server::start(&site, "stock", "v1").await?;
    let (orders, reports) = tokio::try_join!(
        caller(&site, "shop-orders")?.connect(),
        caller(&site, "shop-reports")?.connect()
    )?;
    let (orders, reports) = (channel(&orders, &[&server])?, channel(&reports, &[&server])?);
    for (allowed, refused) in [("shop-orders", 0), ("shop-reports", 1), ("shop-orders", 0)] {
        site.write_rule("callers.yaml", &only(allowed))?;
        let (allowed, refused) =
            if refused == 0 { (&orders, &reports) } else { (&reports, &orders) };
        eventually(async || {
            call(allowed).await.context("who is named may call")?;
            let Err(status) = call(refused).await else {
                anyhow::bail!("who is not named may call");
            };
            ensure!(status.code() == Code::PermissionDenied, "{status}");
            ensure!(status.message().contains("stock-callers/shop"), "{status}");
            Ok(())
        })
        .await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_strict_port_refuses_plaintext() -> Result<()> {
    let site = Site::start().await?;
    let policy = |action: &str| {
        format!(
            "apiVersion: dubbo.apache.org/v1alpha1\nkind: AuthenticationPolicy\n\
             metadata: {{name: tls, namespace: shop}}\nspec: {{action: {action}}}\n"
        )
    };
    site.write_rule("tls.yaml", &policy("STRICT"))?;
    let server = Server::start(&site, "stock", "v1").await?;
    let client = caller(&site, "shop-orders")?.connect().await?;
    let endpoints = || EndpointSet::new([server.endpoint()]);
    let secure = channel(&client, &[&server])?;
    let plain = || -> Result<GovernedChannel> {
        let plain = GovernedChannel::builder(&client, STOCK).plaintext();
        Ok(plain.endpoints(endpoints()?).channel())
    };
    eventually(async || {
        call(&secure).await.context("mutual TLS to a strict port")?;
        let Err(status) = call(&plain()?).await else { anyhow::bail!("plaintext was taken") };
        ensure!(status.code() == Code::Unavailable, "{status}");
        Ok(())
    })
    .await?;
    // Both on one port, and strict again.
    site.write_rule("tls.yaml", &policy("PERMISSIVE"))?;
    eventually(async || {
        call(&secure).await.context("mutual TLS to a permissive port")?;
        call(&plain()?).await.context("plaintext to a permissive port")?;
        Ok(())
    })
    .await?;
    site.write_rule("tls.yaml", &policy("STRICT"))?;
    eventually(async || {
        ensure!(call(&plain()?).await.is_err(), "plaintext was taken");
        Ok(())
    })
    .await?;
    call(&secure).await?;
    Ok(())
}

/// Calls per second, and for how long.
const RATE: u32 = 300;
const ROTATION: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn alone_certificates_are_renewed_under_load_without_a_lost_call() -> Result<()> {
    // Renewed at half of their life.
    let site = Site::start_with(&["--ttl", "10s"]).await?;
    site.write_rule("callers.yaml", &only("shop-orders"))?;
    let server = Server::start(&site, "stock", "v1").await?;
    let client = caller(&site, "shop-orders")?.connect().await?;
    let channel = channel(&client, &[&server])?;
    call(&channel).await?;
    let identity = client.identity().context("it has an identity")?;
    let mut rotated = identity.subscribe();
    rotated.mark_unchanged();
    let (mut calls, mut renewals) = (JoinSet::new(), 0);
    let mut tick = tokio::time::interval(Duration::from_secs(1) / RATE);
    let since = Instant::now();
    while since.elapsed() < ROTATION {
        tick.tick().await;
        let channel = channel.clone();
        calls.spawn(async move { call(&channel).await });
        if rotated.has_changed()? {
            rotated.mark_unchanged();
            renewals += 1;
        }
    }
    let made = calls.len();
    let mut lost = BTreeMap::<String, u32>::new();
    while let Some(ended) = calls.join_next().await {
        if let Err(status) = ended? {
            *lost.entry(status.to_string()).or_default() += 1;
        }
    }
    ensure!(lost.is_empty(), "of {made} calls were lost: {lost:?}");
    let wanted = f64::from(RATE) * ROTATION.as_secs_f64();
    ensure!(made as f64 > 0.9 * wanted, "only {made} of {wanted} calls were made");
    ensure!(renewals >= 6, "renewed {renewals} times");
    Ok(())
}

/// Calls of which a share is measured, and how many at a time.
const CALLS: u64 = 100_000;
const AT_ONCE: u64 = 32;

/// The share of the calls that `version` answers.
async fn share(channel: &GovernedChannel, version: &'static str) -> Result<f64> {
    let answered = Arc::new(AtomicU64::new(0));
    let mut workers = JoinSet::new();
    for _ in 0..AT_ONCE {
        let (channel, answered) = (channel.clone(), answered.clone());
        workers.spawn(async move {
            for _ in 0..CALLS / AT_ONCE {
                if call(&channel).await? == version {
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            }
            Ok::<_, tonic::Status>(())
        });
    }
    while let Some(ended) = workers.join_next().await {
        ended??;
    }
    Ok(answered.load(Ordering::Relaxed) as f64 / (CALLS / AT_ONCE * AT_ONCE) as f64)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn alone_shares_are_those_of_the_rule() -> Result<()> {
    let site = Site::start().await?;
    let canary = |weights: [u32; 2]| {
        format!(
            "apiVersion: dubbo.apache.org/v1alpha1\nkind: ConditionRoute\n\
             metadata: {{name: canary, namespace: shop}}\n\
             spec: {{configVersion: v3.1, scope: service, key: {STOCK}, conditions: [{{to: [\
             {{match: version=v1, weight: {}}}, {{match: version=v2, weight: {}}}]}}]}}\n",
            weights[0], weights[1]
        )
    };
    let (first, second) = tokio::try_join!(
        Server::start(&site, "stock-1", "v1"),
        Server::start(&site, "stock-2", "v2")
    )?;
    let client = caller(&site, "shop-orders")?.connect().await?;
    let channel = channel(&client, &[&first, &second])?;
    for (weights, wanted) in [([95, 5], 0.05), ([1, 1], 0.5)] {
        site.write_rule("canary.yaml", &canary(weights))?;
        eventually(async || {
            let status = site.status().await?;
            let rule = status.rules.iter().find(|rule| rule.key == "canary/shop");
            let rule = rule.context("the plane has not read it")?;
            let held = client.status();
            let held = held.kind("dubbo.apache.org/v1alpha1/ConditionRoute");
            ensure!(held.is_some_and(|kind| kind.revision >= rule.revision), "not here yet");
            Ok(())
        })
        .await?;
        let share = share(&channel, "v2").await?;
        ensure!((share - wanted).abs() <= 0.005, "v2 has {share} of the calls, not {wanted}");
    }
    for mut server in [first, second] {
        terminate(&server.process)?;
        ensure!(server.process.wait().await?.success(), "a server ends as it is told");
    }
    Ok(())
}
