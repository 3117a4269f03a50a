//! A tonic service that says its name, and does what a test wants.

use std::{
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use rulecast_api::proto::{
    dubbo::mapping::{
        ServiceMappingRequest, ServiceMappingResponse,
        service_name_mapping_service_server::{
            ServiceNameMappingService, ServiceNameMappingServiceServer,
        },
    },
    observe::v1::{
        ObserveRequest, ObserveResponse,
        rule_service_server::{RuleService, RuleServiceServer},
    },
};
use rulecast_sdk::{Client, Endpoint, tls};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::watch,
};
use tokio_stream::{Stream, StreamExt as _, wrappers::TcpListenerStream};
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::{
    Code, Request, Response, Status, Streaming,
    metadata::MetadataMap,
    service::Routes,
    transport::{Server as Tonic, server::Connected},
};

/// What a server does with calls.
#[derive(Clone, Debug)]
pub(crate) enum Does {
    Answer,
    Fail(Code),
    /// Waits until it does something else.
    Hold,
}

/// A server that runs until it is dropped.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) does: watch::Sender<Does>,
    shared: Arc<Shared>,
    _stop: DropGuard,
}

#[derive(Default)]
struct Shared {
    calls: AtomicUsize,
    last: Mutex<MetadataMap>,
    connections: watch::Sender<usize>,
}

impl Server {
    /// In the clear.
    pub(crate) async fn start() -> Self {
        let (server, listener, routes, stop) = Self::new().await;
        let connections = server.shared.connections.clone();
        let incoming = TcpListenerStream::new(listener)
            .map(move |stream| stream.map(|stream| Counted::new(stream, connections.clone())));
        let serving = Tonic::builder().add_routes(routes);
        tokio::spawn(serving.serve_with_incoming_shutdown(incoming, stop.cancelled_owned()));
        server
    }

    /// As policies for this client say.
    pub(crate) async fn secure(client: &Client) -> Self {
        let (server, listener, routes, stop) = Self::new().await;
        let client = client.clone();
        tokio::spawn(async move {
            tls::serve(listener, &client, routes, stop, tls::ServeOptions::default()).await
        });
        server
    }

    async fn new() -> (Self, TcpListener, Routes, CancellationToken) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let does = watch::Sender::new(Does::Answer);
        let shared = Arc::new(Shared::default());
        let stop = CancellationToken::new();
        let service =
            Named { name: address.to_string(), does: does.clone(), shared: shared.clone() };
        let routes = Routes::new(ServiceNameMappingServiceServer::new(service));
        let routes = routes.add_service(RuleServiceServer::new(Echo));
        let server = Self { address, does, shared, _stop: stop.clone().drop_guard() };
        (server, listener, routes, stop)
    }

    pub(crate) fn endpoint(&self) -> Endpoint {
        Endpoint::new(self.address.ip().to_string(), self.address.port())
    }

    pub(crate) fn name(&self) -> String {
        self.address.to_string()
    }

    /// Calls that came.
    pub(crate) fn calls(&self) -> usize {
        self.shared.calls.load(Ordering::SeqCst)
    }

    /// Metadata of the last call.
    pub(crate) fn last(&self) -> MetadataMap {
        self.shared.last.lock().expect("not poisoned").clone()
    }

    /// Open connections, to wait for.
    pub(crate) fn connections(&self) -> watch::Receiver<usize> {
        self.shared.connections.subscribe()
    }
}

struct Named {
    name: String,
    does: watch::Sender<Does>,
    shared: Arc<Shared>,
}

#[tonic::async_trait]
impl ServiceNameMappingService for Named {
    async fn register_service_app_mapping(
        &self,
        request: Request<ServiceMappingRequest>,
    ) -> Result<Response<ServiceMappingResponse>, Status> {
        self.shared.calls.fetch_add(1, Ordering::SeqCst);
        *self.shared.last.lock().expect("not poisoned") = request.metadata().clone();
        let mut does = self.does.subscribe();
        let does = does.wait_for(|does| !matches!(does, Does::Hold)).await;
        match does.map(|does| does.clone()) {
            Ok(Does::Fail(code)) => Err(Status::new(code, "as asked")),
            _ => {
                let message = self.name.clone();
                Ok(Response::new(ServiceMappingResponse { success: true, message }))
            }
        }
    }
}

/// Says again what it hears.
struct Echo;

#[tonic::async_trait]
impl RuleService for Echo {
    type ObserveStream = Pin<Box<dyn Stream<Item = Result<ObserveResponse, Status>> + Send>>;

    async fn observe(
        &self,
        requests: Request<Streaming<ObserveRequest>>,
    ) -> Result<Response<Self::ObserveStream>, Status> {
        let echo = |request: ObserveRequest| ObserveResponse {
            nonce: request.nonce,
            ..ObserveResponse::default()
        };
        let echoes = requests.into_inner().map(move |request| request.map(echo));
        Ok(Response::new(Box::pin(echoes)))
    }
}

/// A connection that is counted while it is open.
struct Counted {
    stream: TcpStream,
    open: watch::Sender<usize>,
}

impl Counted {
    fn new(stream: TcpStream, open: watch::Sender<usize>) -> Self {
        open.send_modify(|open| *open += 1);
        Self { stream, open }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.open.send_modify(|open| *open -= 1);
    }
}

impl Connected for Counted {
    type ConnectInfo = ();
    fn connect_info(&self) {}
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
