//! A small shop whose calls Rulecast governs: a gateway that the world asks by HTTP, Orders that
//! the gateway asks by gRPC, and Stock that Orders asks. Each is a process with an identity of
//! its own. None knows who may call it, how much, or which of several servers to use: rules say
//! it, see `examples/rules`.

pub mod gateway;
pub mod orders;
mod page;
pub mod process;
pub mod proto;
pub mod report;
pub mod stock;

/// The service of Orders, as rules name it.
pub const ORDERS: &str = "shop.v1.Orders";
/// The service of Stock.
pub const STOCK: &str = "shop.v1.Stock";

/// What users read of the SDK: its snippets compile.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/sdk.md")]
struct Page;
