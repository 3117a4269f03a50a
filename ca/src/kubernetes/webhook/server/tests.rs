use std::net::SocketAddr;

use rulecast_identity::PrivateKey;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, ServerName};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    task::JoinHandle,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::*;
use crate::Authority;

struct Server {
    address: SocketAddr,
    root: CertificateDer<'static>,
    certificate: ServingCertificate,
    authority: Authority,
    shutdown: CancellationToken,
    task: JoinHandle<Result<(), CaError>>,
}

async fn start() -> Server {
    let parent = tempfile::tempdir().expect("folder");
    let dir = parent.path().join("ca");
    crate::init(&dir, "td.example").expect("made");
    let authority = Authority::open(&dir).expect("opens");
    let root = authority.bundle().roots()[0].clone();
    let certificate = serving(&authority);
    let certificate = ServingCertificate::new(certificate.0, &certificate.1).expect("fits");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let shutdown = CancellationToken::new();
    let serve = serve_on(
        listener,
        WebhookConfig::in_namespace("rulecast-system"),
        certificate.clone(),
        Metrics::default(),
        shutdown.clone(),
    );
    Server { address, root, certificate, authority, task: tokio::spawn(serve), shutdown }
}

fn serving(authority: &Authority) -> (Vec<CertificateDer<'static>>, PrivateKey) {
    let hosts = ["hook.example".to_owned()];
    let issued = authority.webhook_certificate(&hosts, Duration::from_secs(60)).expect("issued");
    (issued.chain, issued.key)
}

type Stream = TlsStream<TcpStream>;

impl Server {
    async fn connect_with(&self, alpn: &[&str]) -> io::Result<Stream> {
        let mut roots = RootCertStore::empty();
        roots.add(self.root.clone()).expect("a root");
        let mut config = ClientConfig::builder_with_provider(tls::provider())
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        let name = ServerName::try_from("hook.example").expect("a name");
        let tcp = TcpStream::connect(self.address).await?;
        TlsConnector::from(Arc::new(config)).connect(name, tcp).await
    }

    async fn connect(&self) -> Stream {
        self.connect_with(&["http/1.1"]).await.expect("connects")
    }

    /// Status and body of one exchange on a connection of its own.
    async fn call(&self, head: &str, body: &[u8]) -> (u16, String) {
        let mut stream = self.connect().await;
        send(&mut stream, head, body).await;
        receive(&mut stream).await
    }

    async fn post(&self, path: &str, body: &[u8]) -> (u16, String) {
        let head = format!("POST {path} HTTP/1.1\r\nContent-Length: {}", body.len());
        self.call(&head, body).await
    }
}

async fn send(stream: &mut Stream, head: &str, body: &[u8]) {
    let head = format!("{head}\r\nHost: hook.example\r\n\r\n");
    stream.write_all(head.as_bytes()).await.expect("sent");
    // The server may have answered, and closed, before it has all.
    let _ = stream.write_all(body).await;
    let _ = stream.flush().await;
}

async fn receive(stream: &mut Stream) -> (u16, String) {
    let mut answer = Vec::new();
    let (head, len) = loop {
        if let Some(end) = answer.windows(4).position(|window| window == b"\r\n\r\n") {
            let head = String::from_utf8(answer.drain(..end + 4).collect()).expect("text");
            let len = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "))
                .map_or(0, |len| len.parse().expect("a number"));
            break (head, len);
        }
        assert_ne!(stream.read_buf(&mut answer).await.expect("read"), 0, "an answer");
    };
    while answer.len() < len {
        assert_ne!(stream.read_buf(&mut answer).await.expect("read"), 0, "a whole body");
    }
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.expect("a status"), String::from_utf8(answer).expect("text"))
}

fn review(uid: &str, filling: &str) -> Vec<u8> {
    json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": uid,
            "kind": { "group": "", "version": "v1", "kind": "Pod" },
            "resource": { "group": "", "version": "v1", "resource": "pods" },
            "operation": "CREATE",
            "namespace": "shop",
            "object": {
                "metadata": { "name": "web" },
                "spec": { "containers": [{ "name": "web", "args": [filling] }] },
            },
        },
    })
    .to_string()
    .into_bytes()
}

fn uid(body: &str) -> Value {
    serde_json::from_str::<Value>(body).expect("JSON")["response"]["uid"].clone()
}

#[tokio::test]
async fn reviews_are_answered_on_one_connection() {
    let server = start().await;
    let mut stream = server.connect().await;
    for n in 0..3 {
        let body = review(&format!("u-{n}"), "");
        let head = format!("POST /inject?timeout=5s HTTP/1.1\r\nContent-Length: {}", body.len());
        send(&mut stream, &head, &body).await;
        let (status, answer) = receive(&mut stream).await;
        assert_eq!((status, uid(&answer)), (200, json!(format!("u-{n}"))));
        assert!(answer.contains("JSONPatch"), "{answer}");
    }
}

#[tokio::test]
async fn what_is_no_review_gets_no_echo() {
    let server = start().await;
    for body in ["", "s3cret", "{\"request\":{\"uid\":\"s3cret\"}}"] {
        let (status, answer) = server.post("/inject", body.as_bytes()).await;
        assert_eq!(status, 400);
        assert!(answer.contains("no AdmissionReview") && !answer.contains("s3cret"), "{answer}");
    }
    assert_eq!(server.post("/other", b"{}").await.0, 404);
    assert_eq!(server.call("GET /inject HTTP/1.1", b"").await.0, 405);
}

#[tokio::test]
async fn bodies_are_long_and_no_longer() {
    let server = start().await;
    let body = review("long", &"x".repeat(3 << 20));
    let (status, answer) = server.post("/inject", &body).await;
    assert_eq!((status, uid(&answer)), (200, json!("long")));
    // Not even read.
    let head = format!("POST /inject HTTP/1.1\r\nContent-Length: {}", MAX_BODY + 1);
    assert_eq!(server.call(&head, b"").await.0, 413);
    let head = "POST /inject HTTP/1.1\r\nContent-Length: 99999999999999999999";
    assert!([400, 413].contains(&server.call(head, b"").await.0));
    // Without a length it is counted.
    let chunked = |size: usize| {
        let mut body = format!("{size:x}\r\n").into_bytes();
        body.resize(body.len() + size, b' ');
        body.extend_from_slice(b"\r\n0\r\n\r\n");
        body
    };
    let head = "POST /inject HTTP/1.1\r\nTransfer-Encoding: chunked";
    assert_eq!(server.call(head, &chunked(100)).await.0, 400);
    assert_eq!(server.call(head, &chunked(MAX_BODY + 1)).await.0, 413);
}

#[tokio::test]
async fn bodies_under_way_are_bounded_and_leave_room_again() {
    let server = start().await;
    let head = format!("POST /inject HTTP/1.1\r\nContent-Length: {MAX_BODY}");
    let mut slow = Vec::new();
    for _ in 0..BODIES / MAX_BODY {
        let mut stream = server.connect().await;
        send(&mut stream, &head, b"{").await;
        slow.push(stream);
    }
    // The slow ones end before the patience of one that came later.
    let body = review("u", "");
    let mut stream = server.connect().await;
    let head = format!("POST /inject HTTP/1.1\r\nContent-Length: {}", body.len());
    send(&mut stream, &head, &body).await;
    let (late, served) = tokio::join!(receive(&mut slow[0]), receive(&mut stream));
    assert_eq!(late.0, 503);
    assert_eq!((served.0, uid(&served.1)), (200, json!("u")));
}

#[tokio::test]
async fn it_speaks_http_1_as_api_servers_want_it() {
    let server = start().await;
    let stream = server.connect_with(&["h2", "http/1.1"]).await.expect("connects");
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
    server.connect_with(&["h2"]).await.expect_err("no common protocol");
    let stream = server.connect_with(&[]).await.expect("connects");
    assert_eq!(stream.get_ref().1.alpn_protocol(), None);
}

#[tokio::test]
async fn the_certificate_changes_under_it() {
    let server = start().await;
    let leaf = |stream: &Stream| stream.get_ref().1.peer_certificates().expect("shown")[0].clone();
    let first = leaf(&server.connect().await);
    let (chain, key) = serving(&server.authority);
    server.certificate.replace(chain.clone(), &key).expect("fits");
    let second = leaf(&server.connect().await);
    assert_ne!(second, first);
    assert_eq!(second, chain[0]);
    let other = PrivateKey::generate().expect("a key");
    server.certificate.replace(chain, &other).expect_err("another key");
    assert_eq!(leaf(&server.connect().await), second);
}

#[tokio::test]
async fn an_open_call_ends_before_the_server_does() {
    let server = start().await;
    let body = review("open", "");
    let mut stream = server.connect().await;
    let head = format!("POST /inject HTTP/1.1\r\nContent-Length: {}", body.len());
    send(&mut stream, &head, &body[..10]).await;
    let idle = server.connect().await;
    // Only a call that the server knows of is open.
    let mut other = server.connect().await;
    send(&mut other, "GET /inject HTTP/1.1", b"").await;
    receive(&mut other).await;
    server.shutdown.cancel();
    while TcpStream::connect(server.address).await.is_ok() {
        tokio::task::yield_now().await;
    }
    stream.write_all(&body[10..]).await.expect("sent");
    let (status, answer) = receive(&mut stream).await;
    assert_eq!((status, uid(&answer)), (200, json!("open")));
    server.task.await.expect("no panic").expect("ends well");
    drop(idle);
}
