//! Who calls in the demo: customers at the gateway, and a job that has no business at Stock.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Result;
use http::{Method, StatusCode};
use rulecast_sdk::{Client, Endpoint, EndpointSet, channel::GovernedChannel};
use rulecast_shop::{
    STOCK,
    proto::{GetItemRequest, Item, stock_client::StockClient},
    report::{Calls, Outcome},
};
use tokio::{sync::Semaphore, time::MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::{
    http::Http,
    plane::Site,
    shop::{NAMESPACE, PROCESSES, Role},
};

/// The edge from the customers, in what is counted.
pub(super) const GATEWAY: &str = "gateway";

/// Customers, and how many calls each makes in a second.
const CUSTOMERS: [(&str, u32); 3] = [("alice", 40), ("bob", 40), ("mallory", 80)];

/// Calls of a customer under way at a time.
const UNDER_WAY: usize = 64;

/// Customers call the gateway until `stop`, each at an even rate, whether or not it answers.
pub(super) fn customers(gateway: SocketAddr, calls: &Calls, stop: &CancellationToken) {
    let http = Http::new();
    for (customer, rate) in CUSTOMERS {
        let (http, calls, stop) = (http.clone(), calls.clone(), stop.clone());
        tokio::spawn(async move {
            let places = Arc::new(Semaphore::new(UNDER_WAY));
            let mut ticks = tokio::time::interval(Duration::from_secs(1) / rate);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
            loop {
                tokio::select! {
                    () = stop.cancelled() => return,
                    _ = ticks.tick() => {}
                }
                let Ok(place) = places.clone().try_acquire_owned() else { continue };
                let (http, calls) = (http.clone(), calls.clone());
                tokio::spawn(async move {
                    let _place = place;
                    let since = Instant::now();
                    let outcome = ask(&http, gateway, customer).await;
                    calls.count(GATEWAY, outcome, since.elapsed());
                });
            }
        });
    }
}

/// One of ten calls orders, the others look.
async fn ask(http: &Http, gateway: SocketAddr, customer: &str) -> Outcome {
    let (method, path) = match fastrand::u8(..10) {
        0 => (Method::POST, "/orders/bread/2"),
        _ => (Method::GET, "/quotes/apple"),
    };
    match http.call(method, gateway, path, &[("x-customer", customer)]).await {
        Ok(reply) if reply.status.is_success() => Outcome::Answered(String::new()),
        Ok(reply)
            if matches!(reply.status, StatusCode::FORBIDDEN | StatusCode::TOO_MANY_REQUESTS) =>
        {
            Outcome::Denied(reply.body.trim_end().to_owned())
        }
        Ok(reply) => Outcome::Failed(reply.status.to_string()),
        Err(_) => Outcome::Failed("no answer".to_owned()),
    }
}

/// A job that reads Stock, whatever the rules think of it.
pub(super) struct Job {
    client: Client,
    stock: StockClient<GovernedChannel>,
    calls: Calls,
}

impl Job {
    /// Its application.
    pub(super) const APPLICATION: &str = "shop-reports";

    /// Joins with `token`.
    pub(super) async fn start(site: &Site, token: &str) -> Result<Self> {
        let client = Client::builder()
            .ca(site.ca.to_string())
            .plane(site.dds.to_string())
            .join_token(token)
            .namespace(NAMESPACE)
            .application(Self::APPLICATION)
            .instance("reports")
            .parameter("region", "hangzhou")
            .service(STOCK)
            .connect()
            .await?;
        let places = PROCESSES.iter().zip(site.shop.chunks(2));
        let endpoints = places.filter(|((_, role, ..), _)| *role == Role::Stock).map(
            |((_, _, version, region), ports)| {
                Endpoint::new(ports[0].ip().to_string(), ports[0].port())
                    .with("version", *version)
                    .with("region", *region)
            },
        );
        let endpoints = EndpointSet::new(endpoints)?;
        let channel = GovernedChannel::builder(&client, STOCK).endpoints(endpoints).channel();
        Ok(Self { client, stock: StockClient::new(channel), calls: Calls::default() })
    }

    /// Reads an item once.
    pub(super) async fn read(&self) -> Result<Item, Status> {
        let mut stock = self.stock.clone();
        let call = stock.get_item(GetItemRequest { item: "apple".to_owned() });
        self.calls.watch(STOCK, call, |item| item.server.as_ref()).await
    }

    /// What it tells of itself, as the shop's processes do.
    pub(super) fn report(&self) -> rulecast_shop::report::Report {
        self.calls.report(&self.client)
    }

    /// Reads twice a second, until `stop`.
    pub(super) async fn run(&self, stop: &CancellationToken) {
        let mut ticks = tokio::time::interval(Duration::from_millis(500));
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = ticks.tick() => drop(self.read().await),
            }
        }
    }

    pub(super) async fn stop(self) {
        self.client.shutdown().await;
    }
}
