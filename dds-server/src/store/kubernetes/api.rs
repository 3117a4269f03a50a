//! Requests to the API server: lists in pages, watches, and what else the store asks.

use std::{future::Future, io, time::Duration};

use futures_util::{AsyncBufReadExt, Stream};
use kube::{
    Client,
    core::{
        Request,
        params::{GetParams, ListParams, WatchParams},
    },
};
use rulecast_api::{Kind, ResourceId};
use serde::{Deserialize, de::DeserializeOwned, de::IgnoredAny};

use super::{
    fault::{Fault, Why, crd},
    object::{Meta, Object, revision},
};

/// Objects on a page.
const PAGE: u32 = 500;
/// How long an answer may take, until it is complete or, for a watch, until it begins.
const ANSWER: Duration = Duration::from_secs(20);
/// A watch is asked to end after so many seconds, or somewhat less. A server may take longer
/// by `SLACK`.
const WATCH: u32 = 290;
const SLACK: Duration = Duration::from_secs(15);

/// A page of a list.
#[derive(Deserialize)]
pub(super) struct Page {
    metadata: PageMeta,
    // Go writes an empty list as null.
    items: Option<Vec<Object>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PageMeta {
    #[serde(default)]
    resource_version: String,
    #[serde(default, rename = "continue")]
    token: Option<String>,
}

impl Page {
    /// Where the next page begins; `None`: this is the last.
    pub(super) fn next(&mut self) -> Option<String> {
        self.metadata.token.take().filter(|token| !token.is_empty())
    }

    pub(super) fn items(self) -> Vec<Object> {
        self.items.unwrap_or_default()
    }
}

#[derive(Deserialize)]
struct Head {
    metadata: PageMeta,
    #[serde(rename = "items")]
    _items: IgnoredAny,
}

/// Whether the definition of a kind is there to stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Definition {
    There,
    /// Being removed, or gone.
    Going,
    /// We may not look.
    Unknown,
}

#[derive(Clone)]
pub(super) struct Api(Client);

impl Api {
    pub(super) fn new(client: Client) -> Self {
        Self(client)
    }

    /// A page of all objects of a kind, with its revision. All pages of a list show one moment.
    /// Without `paged` the list comes whole.
    pub(super) async fn page(
        &self,
        kind: Kind,
        paged: bool,
        token: Option<String>,
    ) -> Result<(Page, i64), Fault> {
        let params = ListParams {
            limit: paged.then_some(PAGE),
            continue_token: token,
            ..ListParams::default()
        };
        let request = Request::new(path(kind, None)).list(&params);
        let page: Page = self.answer("list", &crd(kind), request).await?;
        let at = revision(&page.metadata.resource_version)
            .map_err(|error| Fault::unreadable("list", crd(kind), &error))?;
        Ok((page, at))
    }

    /// The storage's newest revision.
    pub(super) async fn newest(&self, kind: Kind) -> Result<i64, Fault> {
        let params = ListParams { limit: Some(1), ..ListParams::default() };
        let request = Request::new(path(kind, None)).list(&params);
        let head: Head = self.answer("list", &crd(kind), request).await?;
        revision(&head.metadata.resource_version)
            .map_err(|error| Fault::unreadable("list", crd(kind), &error))
    }

    /// All changes of a kind after a revision, a line each, and how long the silence
    /// between two may last.
    pub(super) async fn watch(
        &self,
        kind: Kind,
        after: i64,
    ) -> Result<(impl Stream<Item = io::Result<String>> + Send + Unpin + use<>, Duration), Fault>
    {
        // Not all at once after a restart of the server.
        let seconds = WATCH - fastrand::u32(0..WATCH / 6);
        let params =
            WatchParams { timeout: Some(seconds), bookmarks: true, ..WatchParams::default() };
        let mut request = Request::new(path(kind, None))
            .watch(&params, &after.to_string())
            .map_err(|error| Fault::failed("watch", crd(kind), error.to_string()))?;
        // A compressed stream would come in blocks.
        if let Ok(plain) = "identity".parse() {
            request.headers_mut().insert("accept-encoding", plain);
        }
        let answer = within("watch", &crd(kind), self.0.request_stream(request)).await?;
        Ok((Box::pin(answer).lines(), Duration::from_secs(seconds.into()) + SLACK))
    }

    /// Whether the CRD of a kind is there to stay. Before a CRD goes all its objects are
    /// deleted, which is no wish of whoever wrote them.
    pub(super) async fn definition(&self, kind: Kind) -> Result<Definition, Fault> {
        let resource = format!("customresourcedefinitions.apiextensions.k8s.io {}", crd(kind));
        let request = Request::new("/apis/apiextensions.k8s.io/v1/customresourcedefinitions")
            .get_metadata(&crd(kind), &GetParams::default());
        match self.answer::<Bare>("get", &resource, request).await {
            Ok(found) if found.metadata.deletion_timestamp.is_some() => Ok(Definition::Going),
            Ok(_) => Ok(Definition::There),
            Err(Fault { why: Why::Missing, .. }) => Ok(Definition::Going),
            Err(Fault { why: Why::Forbidden(_), .. }) => Ok(Definition::Unknown),
            Err(fault) => Err(fault),
        }
    }

    /// What tells this cluster from all others.
    pub(super) async fn cluster(&self) -> Result<String, Fault> {
        let request =
            Request::new("/api/v1/namespaces").get_metadata("kube-system", &GetParams::default());
        let found: Bare = self.answer("get", "namespaces kube-system", request).await?;
        if found.metadata.uid.is_empty() {
            return Err(Fault::failed("get", "namespaces kube-system", "it has no uid"));
        }
        Ok(found.metadata.uid)
    }

    /// Sends a request and reads the whole answer.
    pub(super) async fn answer<T: DeserializeOwned>(
        &self,
        verb: &'static str,
        resource: &str,
        request: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
    ) -> Result<T, Fault> {
        let request = request.map_err(|error| Fault::failed(verb, resource, error.to_string()))?;
        let text = within(verb, resource, self.0.request_text(request)).await?;
        serde_json::from_str(&text).map_err(|error| {
            Fault::failed(verb, resource, format!("an answer that cannot be read: {error}"))
        })
    }
}

#[derive(Deserialize)]
struct Bare {
    metadata: Meta,
}

/// An answer in time.
async fn within<T>(
    verb: &'static str,
    resource: &str,
    answer: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, Fault> {
    match tokio::time::timeout(ANSWER, answer).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(Fault::new(verb, resource, error)),
        Err(_) => Err(Fault::failed(verb, resource, format!("no answer within {ANSWER:?}"))),
    }
}

/// Where the objects of a kind are: in one namespace, or all.
pub(super) fn path(kind: Kind, namespace: Option<&str>) -> String {
    match namespace {
        Some(namespace) => {
            format!("/apis/{}/namespaces/{namespace}/{}", kind.api_version, kind.plural)
        }
        None => format!("/apis/{}/{}", kind.api_version, kind.plural),
    }
}

/// An object as messages name it: `conditionroutes.dubbo.apache.org default/prefer-local`.
pub(super) fn named(id: &ResourceId) -> String {
    format!("{} {}/{}", crd(id.kind), id.namespace, id.name)
}
