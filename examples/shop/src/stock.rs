//! Stock: a warehouse, asked by gRPC.

use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;
use rulecast_sdk::layer::{AuthorizeLayer, RateLimitLayer};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};
use tower_layer::Layer as _;

use crate::{
    process::{Process, ProcessOptions},
    proto::{
        GetItemRequest, Item, ReserveRequest, Server,
        stock_server::{Stock, StockServer},
    },
};

/// Options of Stock.
#[derive(Clone, Debug, clap::Args)]
pub struct StockOptions {
    /// What every process has.
    #[command(flatten)]
    pub process: ProcessOptions,
}

/// Serves until `shutdown`.
pub async fn run(options: StockOptions, shutdown: CancellationToken) -> Result<()> {
    let process = Process::start("shop-stock", options.process, &[], &shutdown).await?;
    let service = StockServer::new(Warehouse::new(process.server()));
    let service = RateLimitLayer::grpc(process.client()).layer(service);
    let service = AuthorizeLayer::grpc(process.client()).layer(service);
    process.serve(service, shutdown).await
}

struct Warehouse {
    server: Server,
    goods: [Goods; 3],
}

struct Goods {
    name: &'static str,
    price: u64,
    left: AtomicU64,
}

impl Warehouse {
    fn new(server: Server) -> Self {
        let goods = |name, price| Goods { name, price, left: AtomicU64::new(1_000_000_000) };
        Self { server, goods: [goods("apple", 40), goods("bread", 320), goods("cheese", 1250)] }
    }

    #[allow(clippy::result_large_err, reason = "tonic's own")]
    fn find(&self, name: &str) -> Result<&Goods, Status> {
        self.goods
            .iter()
            .find(|goods| goods.name == name)
            .ok_or_else(|| Status::not_found(format!("there is no item \"{name}\"")))
    }

    fn item(&self, goods: &Goods) -> Response<Item> {
        Response::new(Item {
            price: goods.price,
            left: goods.left.load(Ordering::Relaxed),
            server: Some(self.server.clone()),
        })
    }
}

#[tonic::async_trait]
impl Stock for Warehouse {
    async fn get_item(&self, request: Request<GetItemRequest>) -> Result<Response<Item>, Status> {
        Ok(self.item(self.find(&request.get_ref().item)?))
    }

    async fn reserve(&self, request: Request<ReserveRequest>) -> Result<Response<Item>, Status> {
        let ReserveRequest { item, quantity } = request.into_inner();
        let goods = self.find(&item)?;
        let take = |left: u64| left.checked_sub(u64::from(quantity));
        goods
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
            .map_err(|left| Status::failed_precondition(format!("{left} of {item} are left")))?;
        Ok(self.item(goods))
    }
}
