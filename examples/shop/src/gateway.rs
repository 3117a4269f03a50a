//! The gateway: asked by anybody over HTTP; asks Orders.

use anyhow::Result;
use axum::{
    Router,
    extract::{Path, State},
    http::{HeaderMap, StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use rulecast_sdk::layer::{AuthorizeLayer, Disclose, Options, RateLimitLayer};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Request, Status};

use crate::{
    ORDERS,
    process::{Address, Caller, Process, ProcessOptions},
    proto::{Order, Quote, Server, orders_client::OrdersClient},
};

/// Options of the gateway.
#[derive(Clone, Debug, clap::Args)]
pub struct GatewayOptions {
    /// What every process has.
    #[command(flatten)]
    pub process: ProcessOptions,
    /// A server of Orders: HOST:PORT[,NAME=VALUE]…, for example 127.0.0.1:9001,version=v1
    #[arg(long, env = "SHOP_ORDERS", value_delimiter = ' ', required = true)]
    pub orders: Vec<Address>,
}

/// Serves until `shutdown`.
pub async fn run(options: GatewayOptions, shutdown: CancellationToken) -> Result<()> {
    let process = Process::start("shop-gateway", options.process, &[ORDERS], &shutdown).await?;
    let told = Options { disclose: Disclose::Everyone, ..Options::default() };
    let app = Router::new()
        .route("/quotes/{item}", get(quote))
        .route("/orders/{item}/{quantity}", post(order))
        .with_state(process.caller(ORDERS, &options.orders)?)
        // What is added last comes first. Customers have no certificates; they are told all the
        // same which rule refuses them.
        .layer(RateLimitLayer::http(process.client()).options(told.clone()))
        .layer(AuthorizeLayer::http(process.client()).options(told));
    process.serve(app, shutdown).await
}

/// The answer to whoever asks the gateway.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Answer {
    /// Cents.
    pub price: u64,
    /// Which server of Orders answered.
    pub orders: Place,
    /// Which server of Stock.
    pub stock: Place,
}

/// A server, as the answer names it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Place {
    /// Its version.
    pub version: String,
    /// Its region.
    pub region: String,
    /// Where it listens.
    pub address: String,
}

impl IntoResponse for Answer {
    fn into_response(self) -> Response {
        match serde_json::to_string(&self) {
            Ok(text) => ([(CONTENT_TYPE, "application/json")], text + "\n").into_response(),
            Err(error) => Refusal(Status::internal(error.to_string())).into_response(),
        }
    }
}

async fn quote(
    State(orders): State<Caller>,
    Path(item): Path<String>,
    headers: HeaderMap,
) -> Result<Answer, Refusal> {
    let mut client = OrdersClient::new(orders.channel());
    let call = client.get_quote(with_headers(Order { item, quantity: 1 }, &headers));
    Ok(answer(orders.watch(call, |quote| quote.orders.as_ref()).await?))
}

async fn order(
    State(orders): State<Caller>,
    Path((item, quantity)): Path<(String, u32)>,
    headers: HeaderMap,
) -> Result<Answer, Refusal> {
    let mut client = OrdersClient::new(orders.channel());
    let call = client.place_order(with_headers(Order { item, quantity }, &headers));
    Ok(answer(orders.watch(call, |quote| quote.orders.as_ref()).await?))
}

/// Headers that go on to Orders, for rules to look at.
const PASSED_ON: [&str; 2] = ["env", "traceparent"];

fn with_headers(order: Order, headers: &HeaderMap) -> Request<Order> {
    let mut request = Request::new(order);
    for name in PASSED_ON {
        if let Some(value) = headers.get(name).and_then(|value| value.to_str().ok())
            && let Ok(value) = value.parse()
        {
            request.metadata_mut().insert(name, value);
        }
    }
    request
}

fn answer(quote: Quote) -> Answer {
    let place = |server: Option<Server>| {
        let Server { version, region, address } = server.unwrap_or_default();
        Place { version, region, address }
    };
    Answer { price: quote.price, orders: place(quote.orders), stock: place(quote.stock) }
}

/// What went wrong behind the gateway, as HTTP says it.
struct Refusal(Status);

impl From<Status> for Refusal {
    fn from(status: Status) -> Self {
        Self(status)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = match self.0.code() {
            Code::InvalidArgument => StatusCode::BAD_REQUEST,
            Code::PermissionDenied => StatusCode::FORBIDDEN,
            Code::NotFound => StatusCode::NOT_FOUND,
            Code::FailedPrecondition => StatusCode::CONFLICT,
            Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
            Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
            _ => StatusCode::BAD_GATEWAY,
        };
        (status, format!("{}\n", self.0.message())).into_response()
    }
}
