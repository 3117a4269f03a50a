//! What the run's server does.

use std::time::Duration;

use k8s_openapi::{
    api::{
        authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus},
        core::v1::{ConfigMap, Pod},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{Api, Client, Config, Error, ResourceExt, api::PostParams, config::Kubeconfig};
use rulecast_kube_tests::{Cluster, Proxy};
use serde_json::json;

pub(crate) async fn client(kubeconfig: &std::path::Path) -> Client {
    let file = Kubeconfig::read_from(kubeconfig).expect("a kubeconfig");
    let config = Config::from_custom_kubeconfig(file, &Default::default()).await;
    Client::try_from(config.expect("a usable one")).expect("client")
}

pub(crate) fn config_map(name: &str, value: &str) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() },
        data: Some([("value".to_owned(), value.to_owned())].into()),
        ..ConfigMap::default()
    }
}

fn code(error: &Error) -> u16 {
    match error {
        Error::Api(status) => status.code,
        other => panic!("not the server's answer: {other}"),
    }
}

#[tokio::test]
async fn the_server_is_ready_and_kubectl_reaches_it() {
    let cluster = Cluster::shared().await.expect("server");
    cluster.ready().await.expect("ready");
    let answer = cluster.kubectl(&["get", "--raw", "/readyz"]).await.expect("kubectl");
    assert_eq!((answer.status.success(), answer.stdout.as_str()), (true, "ok"));
    let wrong = cluster.kubectl(&["get", "no-such-kind"]).await.expect("kubectl");
    assert!(!wrong.status.success());
    assert!(wrong.stderr.contains("no-such-kind"), "{}", wrong.stderr);
    assert!(wrong.success().is_err());
    assert_eq!(cluster.url(), format!("https://{}", cluster.addr()));
}

#[tokio::test]
async fn the_shared_server_is_not_restarted() {
    let cluster = Cluster::shared().await.expect("server");
    let error = cluster.restart_api_server().await.expect_err("it is everybody's");
    assert!(error.to_string().contains("Cluster::start"), "{error}");
    assert!(cluster.kill_etcd().await.is_err());
}

#[tokio::test]
async fn namespaces_are_apart_and_show_what_is_in_them() {
    let cluster = Cluster::shared().await.expect("server");
    let one = cluster.namespace("apart").await.expect("namespace");
    let other = cluster.namespace("apart").await.expect("namespace");
    assert_ne!(*one, *other);
    for (namespace, value) in [(&one, "first"), (&other, "second")] {
        let api: Api<ConfigMap> = Api::namespaced(cluster.client(), namespace);
        api.create(&PostParams::default(), &config_map("same", value)).await.expect("created");
        let all = api.list(&Default::default()).await.expect("list");
        let ours: Vec<_> = all.iter().filter(|map| map.name_any() == "same").collect();
        assert_eq!(ours.len(), 1);
        assert_eq!(ours[0].data.as_ref().expect("data")["value"], value);
    }
    cluster
        .kubectl(&["create", "secret", "generic", "keys", "-n", &one, "--from-literal=a=b"])
        .await
        .and_then(|output| output.success())
        .expect("secret");
    let dump = one.dump();
    assert!(dump.contains("value: first") && !dump.contains("second"), "{dump}");
    assert!(!dump.contains("kind: Secret"), "{dump}");
}

#[tokio::test]
async fn an_account_may_do_what_it_was_granted() {
    let cluster = Cluster::shared().await.expect("server");
    let namespace = cluster.namespace("rbac").await.expect("namespace");
    let kubeconfig = cluster.kubeconfig_for(&namespace, "plain").await.expect("kubeconfig");
    let api: Api<ConfigMap> = Api::namespaced(client(&kubeconfig).await, &namespace);
    let denied = api.list(&Default::default()).await.expect_err("nothing was granted");
    assert_eq!(code(&denied), 403, "{denied}");
    let account = format!("--serviceaccount={namespace}:plain");
    let role = ["create", "role", "look", "--verb=list", "--resource=configmaps", "-n", &namespace];
    let bind = ["create", "rolebinding", "look", "--role=look", &account, "-n", &namespace];
    for grant in [&role[..], &bind] {
        cluster.kubectl(grant).await.and_then(|output| output.success()).expect("granted");
    }
    let granted = async {
        // The authorizer hears of it by a watch.
        while api.list(&Default::default()).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), granted).await.expect("allowed in time");
    let map = config_map("mine", "x");
    let denied = api.create(&PostParams::default(), &map).await.expect_err("only to look");
    assert_eq!(code(&denied), 403, "{denied}");
}

async fn review(cluster: &Cluster, token: &str, audience: &str) -> TokenReviewStatus {
    let review = TokenReview {
        spec: TokenReviewSpec { token: Some(token.into()), audiences: Some(vec![audience.into()]) },
        ..TokenReview::default()
    };
    let api: Api<TokenReview> = Api::all(cluster.client());
    let answer = api.create(&PostParams::default(), &review).await.expect("reviewed");
    answer.status.expect("status")
}

#[tokio::test]
async fn a_token_tells_its_account_and_pod_to_its_audience_alone() {
    let cluster = Cluster::shared().await.expect("server");
    let namespace = cluster.namespace("tokens").await.expect("namespace");
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": "shop-1" },
        "spec": {
            "serviceAccountName": "shop",
            "containers": [{ "name": "main", "image": "none" }],
        },
    });
    let api: Api<Pod> = Api::namespaced(cluster.client(), &namespace);
    let pod = serde_json::from_value(pod).expect("a pod");
    let pod = api.create(&PostParams::default(), &pod).await.expect("created");
    let uid = pod.uid().expect("uid");
    let token = cluster.token(&namespace, "shop", "rulecast-ca", Some(("shop-1", &uid)), 3600);
    let token = token.await.expect("token");

    let status = review(&cluster, &token, "rulecast-ca").await;
    assert_eq!(status.authenticated, Some(true), "{status:?}");
    assert_eq!(status.audiences, Some(vec!["rulecast-ca".to_owned()]));
    let user = status.user.expect("user");
    assert_eq!(user.username, Some(format!("system:serviceaccount:{namespace}:shop")));
    let extra = user.extra.expect("facts");
    assert_eq!(extra["authentication.kubernetes.io/pod-name"], ["shop-1"]);
    assert_eq!(extra["authentication.kubernetes.io/pod-uid"], [uid]);

    let status = review(&cluster, &token, "another").await;
    assert_ne!(status.authenticated, Some(true), "{status:?}");
}

#[tokio::test]
async fn a_token_on_disk_is_renewed_in_place() {
    let cluster = Cluster::shared().await.expect("server");
    let namespace = cluster.namespace("renew").await.expect("namespace");
    let kubeconfig = cluster.kubeconfig_for(&namespace, "shop").await.expect("kubeconfig");
    let token = || std::fs::read_to_string(kubeconfig.with_file_name("token")).expect("token");
    let before = token();
    // Its times are whole seconds; within one, the same token would come again.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    cluster.renew_token(&kubeconfig, &namespace, "shop").await.expect("renewed");
    assert_ne!(token(), before);
    let denied = Api::<ConfigMap>::namespaced(client(&kubeconfig).await, &namespace)
        .list(&Default::default())
        .await
        .expect_err("nothing was granted");
    assert_eq!(code(&denied), 403, "known, and not allowed: {denied}");
}

#[tokio::test]
async fn clients_go_through_a_proxy() {
    let cluster = Cluster::shared().await.expect("server");
    let namespace = cluster.namespace("proxy").await.expect("namespace");
    let proxy = Proxy::start(cluster.addr()).await.expect("proxy");
    let api: Api<ConfigMap> =
        Api::namespaced(client(&cluster.kubeconfig_via(&proxy)).await, &namespace);
    api.list(&Default::default()).await.expect("list");
    assert_eq!(proxy.accepted(), 1);
    proxy.cut();
    while api.list(&Default::default()).await.is_err() {}
    assert!(proxy.accepted() > 1, "a new connection");
    let account = cluster.kubeconfig_for(&namespace, "plain").await.expect("kubeconfig");
    let before = proxy.accepted();
    let client = client(&cluster.kubeconfig_through(&account, &proxy)).await;
    let denied = Api::<ConfigMap>::namespaced(client, &namespace).list(&Default::default()).await;
    assert_eq!(code(&denied.expect_err("nothing was granted")), 403);
    assert!(proxy.accepted() > before);
}

#[tokio::test]
async fn definitions_are_served_with_the_rules_that_the_server_knows() {
    let cluster = Cluster::shared().await.expect("server");
    let (one, other) = tokio::join!(cluster.apply_crds(), cluster.apply_crds());
    one.and(other).expect("applied by both who ask");
    let knows_cel = cluster.minor_version().await.expect("version") >= 25;
    let ours = cluster.crds().await.expect("ours");
    assert!(ours.iter().any(|crd| crd.to_string().contains("x-kubernetes-validations")));
    for crd in ours {
        let name = crd["metadata"]["name"].as_str().expect("name");
        // No wait here: the kind is served already.
        cluster.kubectl(&["get", name]).await.and_then(|output| output.success()).expect("served");
        let get = ["get", "crd", name, "--output=json"];
        let there = cluster.kubectl(&get).await.and_then(|output| output.success()).expect("crd");
        let has_cel = there.contains("x-kubernetes-validations");
        let wants_cel = knows_cel && crd.to_string().contains("x-kubernetes-validations");
        assert_eq!(has_cel, wants_cel, "{name}");
    }
}
