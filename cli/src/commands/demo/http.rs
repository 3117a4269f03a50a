//! Plain HTTP, as the world asks the gateway.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context, Result};
use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};

/// How long one call may take.
const LIMIT: Duration = Duration::from_secs(5);

/// Most bytes of an answer.
const MOST: usize = 1 << 20;

/// A client with its open connections. Clones share them.
#[derive(Clone)]
pub(super) struct Http(Client<HttpConnector, Empty<Bytes>>);

/// What came back.
pub(super) struct Reply {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: String,
}

impl Http {
    pub(super) fn new() -> Self {
        Self(Client::builder(TokioExecutor::new()).build_http())
    }

    pub(super) async fn get(&self, at: SocketAddr, path: &str) -> Result<Reply> {
        self.call(Method::GET, at, path, &[]).await
    }

    pub(super) async fn call(
        &self,
        method: Method,
        at: SocketAddr,
        path: &str,
        headers: &[(&str, &str)],
    ) -> Result<Reply> {
        let mut request = Request::builder().method(method).uri(format!("http://{at}{path}"));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Empty::new())?;
        let answered = async {
            let (head, body) = self.0.request(request).await?.into_parts();
            let body =
                Limited::new(body, MOST).collect().await.map_err(anyhow::Error::from_boxed)?;
            let body = String::from_utf8_lossy(&body.to_bytes()).into_owned();
            Ok(Reply { status: head.status, headers: head.headers, body })
        };
        tokio::time::timeout(LIMIT, answered).await.context("no answer")?
    }
}
