//! A client that speaks the protocol by hand.

use std::collections::{BTreeMap, BTreeSet};

use prost::Message as _;
use rulecast_api::{
    Code, Digest, Kind,
    proto::{
        observe::v1::{
            ErrorDetail, Node, ObserveRequest, ObserveResponse, RejectedItem, Subscription,
            rule_service_client::RuleServiceClient,
        },
        rules::v1::Rule,
    },
};
use rulecast_identity::{ConnectOptions, Expected, IdentityError, IdentityHandle, connect, tls};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use crate::site::{Plane, soon};

/// What evaluates rules at these clients, by their own word.
pub(crate) const ENGINE: &[u8] = b"engine one";

/// A whole response: all its chunks.
#[derive(Debug, Default)]
pub(crate) struct Whole {
    pub(crate) nonce: String,
    pub(crate) revision: i64,
    pub(crate) lineage: String,
    pub(crate) delta: bool,
    pub(crate) token: Vec<u8>,
    pub(crate) chunks: usize,
    /// By key.
    pub(crate) rules: BTreeMap<String, (Digest, Rule)>,
    pub(crate) withheld: BTreeMap<String, Digest>,
    pub(crate) removed: BTreeSet<String>,
}

impl Whole {
    pub(crate) fn keys(&self) -> Vec<&str> {
        self.rules.keys().map(String::as_str).collect()
    }

    /// The text of a note.
    pub(crate) fn text(&self, key: &str) -> &str {
        std::str::from_utf8(&self.rules[key].1.spec).expect("a note is text")
    }

    pub(crate) fn reject(&self, key: &str, reason: &str) -> RejectedItem {
        RejectedItem {
            key: key.into(),
            item_digest: self.rules[key].0.to_bytes(),
            engine_digest: ENGINE.into(),
            reason: reason.into(),
        }
    }
}

/// A first request for a kind.
pub(crate) fn subscribe(kind: Kind) -> ObserveRequest {
    ObserveRequest {
        r#type: kind.type_name.into(),
        node: Some(Node {
            instance: "by hand".into(),
            engine_digest: ENGINE.into(),
            ..Node::default()
        }),
        ..ObserveRequest::default()
    }
}

/// The same for some services only.
pub(crate) fn subscribe_to(kind: Kind, services: &[&str]) -> ObserveRequest {
    let services = services.iter().map(|&s| s.into()).collect();
    ObserveRequest { subscription: Some(Subscription { services }), ..subscribe(kind) }
}

/// The same from where a response led.
pub(crate) fn resume(kind: Kind, from: &Whole) -> ObserveRequest {
    ObserveRequest { resume_token: from.token.clone().into(), ..subscribe(kind) }
}

/// A connection with one stream.
pub(crate) struct Stream {
    requests: mpsc::Sender<ObserveRequest>,
    responses: Streaming<ObserveResponse>,
    partial: BTreeMap<String, Whole>,
}

impl Stream {
    /// Connects and sends a first request.
    pub(crate) async fn open(
        plane: &Plane,
        identity: &IdentityHandle,
        first: ObserveRequest,
    ) -> Result<Self, Code> {
        let config = tls::client_config(identity, Expected::dds()).expect("a configuration");
        let address = plane.address.to_string();
        let channel = connect(&address, config, &ConnectOptions::default()).await;
        let (requests, receiver) = mpsc::channel(16);
        requests.send(first).await.expect("room");
        let responses = RuleServiceClient::new(channel.map_err(|error| error.code())?)
            .max_decoding_message_size(rulecast_dds::observe::MAX_RESPONSE)
            .observe(ReceiverStream::new(receiver))
            .await
            .map_err(|status| IdentityError::from_status(&status).code())?
            .into_inner();
        Ok(Self { requests, responses, partial: BTreeMap::new() })
    }

    pub(crate) async fn send(&self, request: ObserveRequest) {
        soon("the request leaves", self.requests.send(request)).await.expect("a stream");
    }

    pub(crate) async fn ack(&self, kind: Kind, whole: &Whole) {
        self.answer(kind, whole, Vec::new()).await;
    }

    /// Rejects these, applies the others.
    pub(crate) async fn answer(&self, kind: Kind, whole: &Whole, rejected: Vec<RejectedItem>) {
        let error_detail = rejected.first().map(|first| ErrorDetail {
            code: Code::RuleRefused.as_str().into(),
            message: first.reason.clone(),
        });
        self.send(ObserveRequest {
            nonce: whole.nonce.clone(),
            r#type: kind.type_name.into(),
            error_detail,
            rejected,
            ..ObserveRequest::default()
        })
        .await;
    }

    /// The next message.
    pub(crate) async fn message(&mut self) -> Result<ObserveResponse, Status> {
        let message = soon("a response", self.responses.message()).await?;
        Ok(message.expect("the plane ends a stream with a reason"))
    }

    /// Reads to the end of the stream.
    pub(crate) async fn end(&mut self) -> Status {
        loop {
            if let Err(status) = self.message().await {
                return status;
            }
        }
    }

    /// The next whole response, which must be of this kind.
    pub(crate) async fn whole(&mut self, kind: Kind) -> Whole {
        let (of, whole) = self.any().await;
        assert_eq!(of, kind.type_name, "{whole:?}");
        whole
    }

    /// The next whole response and its type. Chunks of several kinds may come by turns.
    pub(crate) async fn any(&mut self) -> (String, Whole) {
        loop {
            let message = self.message().await.expect("the stream is open");
            let whole = self.partial.entry(message.r#type.clone()).or_default();
            if whole.chunks == 0 {
                whole.nonce = message.nonce.clone();
            }
            assert_eq!(whole.nonce, message.nonce, "one response of a kind at a time");
            whole.chunks += 1;
            whole.revision = message.revision;
            whole.lineage = message.lineage;
            whole.delta = message.delta;
            whole.token = message.resume_token.to_vec();
            whole.removed.extend(message.removed);
            for item in message.data {
                let rule = Rule::decode(&*item.value).expect("a rule");
                whole.rules.insert(rule.key.clone(), (Digest::of(&item.value), rule));
            }
            for item in message.withheld {
                let digest = Digest::from_bytes(&item.item_digest).expect("a digest");
                whole.withheld.insert(item.key, digest);
            }
            if !message.more_chunks {
                let whole = self.partial.remove(&message.r#type).unwrap_or_default();
                return (message.r#type, whole);
            }
        }
    }

    /// Reads and acknowledges until a response is right.
    pub(crate) async fn until(&mut self, kind: Kind, right: impl Fn(&Whole) -> bool) -> Whole {
        loop {
            let whole = self.whole(kind).await;
            self.ack(kind, &whole).await;
            if right(&whole) {
                return whole;
            }
        }
    }
}
