//! A server that offers HTTP/1.1 alone, as some load balancers do.

use std::{fs, sync::Arc};

use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{ListParams, ObjectMeta, PostParams, WatchParams},
};
use rulecast_kube_tests::Cluster;
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    crypto::{CryptoProvider, aws_lc_rs},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::connect;

fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

/// Ends TLS before the server and begins it anew, and agrees to HTTP/1.1 alone. Answers with
/// its URL and its certificate.
async fn balancer(cluster: &Cluster) -> (String, String) {
    let own = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("made");
    let key = PrivateKeyDer::try_from(own.signing_key.serialize_der()).expect("a key");
    let mut server = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![own.cert.der().clone()], key)
        .expect("a certificate");
    server.alpn_protocols = vec![b"http/1.1".to_vec()];

    let mut roots = RootCertStore::empty();
    let ca = CertificateDer::from_pem_slice(cluster.ca_pem().as_bytes()).expect("a certificate");
    roots.add(ca).expect("an authority");
    let mut client = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    client.alpn_protocols = vec![b"http/1.1".to_vec()];

    let acceptor = TlsAcceptor::from(Arc::new(server));
    let connector = TlsConnector::from(Arc::new(client));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("https://{}", listener.local_addr().expect("an address"));
    let target = cluster.addr();
    tokio::spawn(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            let (acceptor, connector) = (acceptor.clone(), connector.clone());
            tokio::spawn(async move {
                let mut near = acceptor.accept(tcp).await?;
                let name = ServerName::from(target.ip());
                let far = TcpStream::connect(target).await?;
                let mut far = connector.connect(name, far).await?;
                copy_bidirectional(&mut near, &mut far).await
            });
        }
    });
    (url, own.cert.pem())
}

#[tokio::test]
async fn a_server_with_http_1_alone_serves_too() {
    let cluster = Cluster::shared().await.expect("server");
    let namespace = cluster.namespace("http1").await.expect("namespace");
    let (url, pem) = balancer(&cluster).await;
    let folder = tempfile::tempdir().expect("folder");
    let (ca, kubeconfig) = (folder.path().join("balancer.crt"), folder.path().join("kubeconfig"));
    fs::write(&ca, pem).expect("written");
    let admin = fs::read_to_string(cluster.kubeconfig()).expect("a kubeconfig");
    let ours = admin
        .replace(&cluster.url(), &url)
        .replace(&cluster.ca_file().display().to_string(), &ca.display().to_string());
    assert!(ours.contains(&url) && ours.contains("balancer.crt"), "{ours}");
    fs::write(&kubeconfig, ours).expect("written");

    let api: Api<ConfigMap> = Api::namespaced(connect(&kubeconfig).await, &namespace);
    let list = api.list(&ListParams::default()).await.expect("a list");
    let version = list.metadata.resource_version.expect("a version");
    let watch = api.watch(&WatchParams::default(), &version).await.expect("a watch");
    let metadata = ObjectMeta { name: Some("one".into()), ..ObjectMeta::default() };
    let object = ConfigMap { metadata, ..ConfigMap::default() };
    // While the watch holds its connection, others serve.
    api.create(&PostParams::default(), &object).await.expect("created");
    watch.boxed().next().await.expect("an event").expect("a good one");
}
