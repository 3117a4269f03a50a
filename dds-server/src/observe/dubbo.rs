//! The same streams for clients of the Dubbo control plane.

use std::pin::Pin;

use futures_util::{StreamExt as _, stream};
use rulecast_api::proto::{
    dubbo::auth::{
        self as dubbo,
        rule_service_server::{self, RuleServiceServer},
    },
    observe::v1::{Node, ObserveRequest, ObserveResponse},
};
use tonic::{Request, Response, Status, Streaming};

use super::{Caller, MAX_RESPONSE, RuleService, ViewSource};
use crate::stream::Wire;

/// Largest request that is read, in bytes: a nonce and a type.
const MAX_REQUEST: usize = 4 << 10;

/// `org.apache.dubbo.auth.v1alpha1.RuleService`. Clones share everything, and share it with
/// the [`RuleService`] that it is made of.
#[derive(Debug)]
pub struct DubboRuleService<V>(RuleService<V>);

impl<V> Clone for DubboRuleService<V> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<V: ViewSource> DubboRuleService<V> {
    /// The same service for those clients.
    pub fn new(service: RuleService<V>) -> Self {
        Self(service)
    }

    /// For a router, with the limits on messages set.
    pub fn into_server(self) -> RuleServiceServer<Self> {
        RuleServiceServer::new(self)
            .max_decoding_message_size(MAX_REQUEST)
            .max_encoding_message_size(MAX_RESPONSE)
    }
}

#[tonic::async_trait]
impl<V: ViewSource> rule_service_server::RuleService for DubboRuleService<V> {
    type ObserveStream =
        Pin<Box<dyn stream::Stream<Item = Result<dubbo::ObserveResponse, Status>> + Send>>;

    async fn observe(
        &self,
        request: Request<Streaming<dubbo::ObserveRequest>>,
    ) -> Result<Response<Self::ObserveStream>, Status> {
        let caller = Caller::of(request.extensions())?;
        let requests = request.into_inner().map(|request| request.map(asked));
        let responses = self.0.serve_on(Wire::Dubbo, caller, requests);
        Ok(Response::new(Box::pin(responses.map(|response| response.map(answered)))))
    }
}

/// A request in terms of the whole contract.
fn asked(request: dubbo::ObserveRequest) -> ObserveRequest {
    let dubbo::ObserveRequest { nonce, r#type } = request;
    // All that there is to show to operators: such clients do not say who they are.
    let node = Node { agent: "dubbo".into(), ..Node::default() };
    ObserveRequest { nonce, r#type, node: Some(node), ..ObserveRequest::default() }
}

/// What of a response that wire has.
fn answered(response: ObserveResponse) -> dubbo::ObserveResponse {
    let ObserveResponse { nonce, r#type, revision, data, .. } = response;
    dubbo::ObserveResponse { nonce, r#type, revision, data }
}
