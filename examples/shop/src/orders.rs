//! Orders: quotes and takes orders, asked by gRPC; asks Stock.

use anyhow::Result;
use rulecast_sdk::layer::{AuthorizeLayer, RateLimitLayer};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};
use tower_layer::Layer as _;

use crate::{
    STOCK,
    process::{Address, Caller, Process, ProcessOptions},
    proto::{
        GetItemRequest, Item, Order, Quote, ReserveRequest, Server,
        orders_server::{Orders, OrdersServer},
        stock_client::StockClient,
    },
};

/// Options of Orders.
#[derive(Clone, Debug, clap::Args)]
pub struct OrdersOptions {
    /// What every process has.
    #[command(flatten)]
    pub process: ProcessOptions,
    /// A server of Stock: HOST:PORT[,NAME=VALUE]…, for example 127.0.0.1:9003,region=hangzhou
    #[arg(long, env = "SHOP_STOCK", value_delimiter = ' ', required = true)]
    pub stock: Vec<Address>,
}

/// Serves until `shutdown`.
pub async fn run(options: OrdersOptions, shutdown: CancellationToken) -> Result<()> {
    let process = Process::start("shop-orders", options.process, &[STOCK], &shutdown).await?;
    let desk = Desk { server: process.server(), stock: process.caller(STOCK, &options.stock)? };
    let service = RateLimitLayer::grpc(process.client()).layer(OrdersServer::new(desk));
    let service = AuthorizeLayer::grpc(process.client()).layer(service);
    process.serve(service, shutdown).await
}

struct Desk {
    server: Server,
    stock: Caller,
}

impl Desk {
    fn quote(&self, item: Item, quantity: u32) -> Response<Quote> {
        Response::new(Quote {
            price: item.price * u64::from(quantity),
            orders: Some(self.server.clone()),
            stock: item.server,
        })
    }
}

#[allow(clippy::result_large_err, reason = "tonic's own")]
fn checked(order: Request<Order>) -> Result<Order, Status> {
    match order.get_ref().quantity {
        0 => Err(Status::invalid_argument("an order has a quantity of 1 or more")),
        _ => Ok(order.into_inner()),
    }
}

#[tonic::async_trait]
impl Orders for Desk {
    async fn get_quote(&self, request: Request<Order>) -> Result<Response<Quote>, Status> {
        let Order { item, quantity } = checked(request)?;
        let mut stock = StockClient::new(self.stock.channel());
        let call = stock.get_item(GetItemRequest { item });
        Ok(self.quote(self.stock.watch(call, |item| item.server.as_ref()).await?, quantity))
    }

    async fn place_order(&self, request: Request<Order>) -> Result<Response<Quote>, Status> {
        let Order { item, quantity } = checked(request)?;
        let mut stock = StockClient::new(self.stock.channel());
        let call = stock.reserve(ReserveRequest { item, quantity });
        Ok(self.quote(self.stock.watch(call, |item| item.server.as_ref()).await?, quantity))
    }
}
