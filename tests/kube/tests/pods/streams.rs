//! The whole way: a pod's token, its certificate, its stream over TLS, its labels.

use std::time::Duration;

use futures_util::StreamExt as _;
use rulecast_api::{Code, proto::observe::v1::rule_service_client::RuleServiceClient};
use rulecast_cluster::ClusterConfig;
use rulecast_identity::{
    ClientAuth, ConnectOptions, Expected, IdentityHandle, ServeOptions, connect, serve_tls, tls,
};
use tokio::{net::TcpListener, sync::mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;

use crate::{
    authority::{Site, delete, pod},
    plane::{Client, Plane, SERVICE, label, subscribe},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_follows_the_labels_of_its_pod_from_its_first_rule_to_its_end() {
    let site = Site::new().await;
    let ca = site.start().await;
    let config = ClusterConfig { kubeconfig: Some(site.cluster.kubeconfig()), context: None };
    let plane = Plane::start(&config).await;
    // The plane is itself a pod, known by its service account.
    let system = rulecast_identity::SYSTEM_NAMESPACE;
    let token = site.cluster.token(system, "rulecast-dds", "any", None, 600).await;
    token.expect("the namespace and account are there");
    let own = format!("rulecast-dds-{}", site.namespace.name());
    let own = pod(&site.cluster, system, &own, "rulecast-dds", Some("node-a")).await;
    let svid = site.join(&ca, &site.token(&own).await).await.expect("joined");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    let identity = IdentityHandle::fixed(svid);
    let tls = tls::server_config(&identity, ClientAuth::Required, None).expect("TLS");
    let routes = tonic::service::Routes::new(plane.service.clone().into_server());
    let stop = CancellationToken::new();
    let options = ServeOptions { drain: Duration::from_millis(100), ..ServeOptions::default() };
    tokio::spawn(serve_tls(listener, tls, routes, stop.clone(), options));
    let _stop = stop.drop_guard();

    let web = pod(&site.cluster, &site.namespace, "web-0", "web", Some("node-a")).await;
    label(&site.cluster, &web, "stable").await;
    let svid = site.join(&ca, &site.token(&web).await).await.expect("joined");
    let identity = IdentityHandle::fixed(svid);
    let open = async |services: &[&str]| {
        let tls = tls::client_config(&identity, Expected::dds()).expect("TLS");
        let channel = connect(&address, tls, &ConnectOptions::default()).await.expect("let in");
        let (requests, mut outgoing) = mpsc::channel(16);
        let (wire, receiver) = mpsc::channel(16);
        // Requests as the harness has them, onto the wire.
        tokio::spawn(async move {
            while let Some(Ok(request)) = outgoing.recv().await {
                if wire.send(request).await.is_err() {
                    return;
                }
            }
        });
        requests.send(Ok(subscribe(services))).await.expect("room");
        let answer = RuleServiceClient::new(channel).observe(ReceiverStream::new(receiver)).await;
        let responses = answer.expect("a stream").into_inner();
        Client { requests, responses: responses.boxed() }
    };
    let mut all = open(&[]).await;
    // The label may be younger than the first answer.
    let mut seen = all.rules().await;
    if seen == ["all"] {
        seen = all.rules().await;
    }
    assert_eq!(seen, ["all", "stable"]);
    let mut narrow = open(&["com.B"]).await;
    assert!(narrow.rules().await.is_empty(), "what is declared narrows");
    let mut same = open(&[SERVICE]).await;
    assert_eq!(same.rules().await, ["all", "stable"], "and does not widen");

    label(&site.cluster, &web, "canary").await;
    assert_eq!(all.rules().await, ["all", "canary"]);
    assert_eq!(same.rules().await, ["all", "canary"]);
    assert!(narrow.is_quiet().await);

    // Terminating is not gone: the application may still answer calls.
    delete(&site.cluster, &web, 30).await;
    assert!(all.is_quiet().await);
    label(&site.cluster, &web, "stable").await;
    assert_eq!(all.rules().await, ["all", "stable"]);
    delete(&site.cluster, &web, 0).await;
    for stream in [&mut all, &mut narrow] {
        let end = stream.end().await;
        assert_eq!(end.code(), tonic::Code::Unauthenticated, "{end}");
        assert!(end.message().starts_with(Code::PodGone.as_str()), "{end}");
    }
    // The certificate lasts, and is of nobody; a pod of the same name is another one.
    pod(&site.cluster, &site.namespace, "web-0", "web", Some("node-a")).await;
    let end = open(&[]).await.end().await;
    assert!(end.message().starts_with(Code::PodGone.as_str()), "{end}");
    delete(&site.cluster, &own, 0).await;
    ca.stop().await;
}
