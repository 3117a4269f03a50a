//! What a request may be. A request outside these ends its stream.

use std::collections::BTreeSet;

use rulecast_api::{
    Digest, ServiceKey,
    proto::observe::v1::{ObserveRequest, Subscription},
};

/// Bytes of a nonce; ours are shorter.
pub const MAX_NONCE: usize = 64;
/// Bytes of a resume token.
pub const MAX_TOKEN: usize = 16 << 10;
/// Bytes of a type name.
pub const MAX_TYPE: usize = 256;
/// Services that one subscription may declare.
pub const MAX_SERVICES: usize = 1024;
/// Bytes of one service key.
pub const MAX_SERVICE: usize = 512;
/// Items that one request may reject.
pub const MAX_REJECTED: usize = 4096;
/// Bytes of an item's key.
pub const MAX_KEY: usize = 1024;
/// Bytes of a reason, a message, and of each text of a node.
pub const MAX_TEXT: usize = 1024;
/// Bytes of an engine digest.
pub const MAX_ENGINE: usize = 64;
/// Labels of a node.
pub const MAX_LABELS: usize = 64;
/// ABI versions of a node.
pub const MAX_ABI: usize = 64;

/// Services as declared; `None`: all.
pub type Services = Option<BTreeSet<ServiceKey>>;

fn at_most(what: &str, len: usize, limit: usize) -> Result<(), String> {
    if len > limit {
        return Err(format!("{what} is {len} long; at most {limit} is taken"));
    }
    Ok(())
}

/// Whether a request is within the limits; the error is for its sender.
pub(super) fn check(request: &ObserveRequest) -> Result<(), String> {
    at_most("nonce", request.nonce.len(), MAX_NONCE)?;
    at_most("type", request.r#type.len(), MAX_TYPE)?;
    at_most("resume_token", request.resume_token.len(), MAX_TOKEN)?;
    if let Some(node) = &request.node {
        at_most("node.instance", node.instance.len(), MAX_TEXT)?;
        at_most("node.application", node.application.len(), MAX_TEXT)?;
        at_most("node.agent", node.agent.len(), MAX_TEXT)?;
        at_most("node.engine_digest", node.engine_digest.len(), MAX_ENGINE)?;
        at_most("node.abi", node.abi.len(), MAX_ABI)?;
        at_most("node.labels", node.labels.len(), MAX_LABELS)?;
        for (name, value) in &node.labels {
            at_most("a name in node.labels", name.len(), MAX_TEXT)?;
            at_most("a value in node.labels", value.len(), MAX_TEXT)?;
        }
    }
    if let Some(error) = &request.error_detail {
        at_most("error_detail.code", error.code.len(), MAX_TEXT)?;
        at_most("error_detail.message", error.message.len(), MAX_TEXT)?;
    }
    at_most("rejected", request.rejected.len(), MAX_REJECTED)?;
    for item in &request.rejected {
        at_most("rejected.key", item.key.len(), MAX_KEY)?;
        at_most("rejected.engine_digest", item.engine_digest.len(), MAX_ENGINE)?;
        at_most("rejected.reason", item.reason.len(), MAX_TEXT)?;
        if Digest::from_bytes(&item.item_digest).is_none() {
            return Err(format!(
                "rejected.item_digest is {} bytes; it should be 32, SHA-256 of the item",
                item.item_digest.len()
            ));
        }
    }
    Ok(())
}

/// Reads a subscription.
pub(super) fn services(subscription: &Subscription) -> Result<Services, String> {
    at_most("subscription.services", subscription.services.len(), MAX_SERVICES)?;
    let mut services = BTreeSet::new();
    for text in &subscription.services {
        at_most("a key in subscription.services", text.len(), MAX_SERVICE)?;
        services.insert(text.parse().map_err(|e| format!("subscription.services: {e}"))?);
    }
    Ok((!services.is_empty()).then_some(services))
}

/// A client's text made fit for logs and terminals.
pub(super) fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
