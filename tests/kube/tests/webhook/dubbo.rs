//! Pods that ask by Dubbo's label.

use kube::api::PostParams;
use serde_json::json;

use crate::site::{Site, bundled, labelled, pod, variables};

const OLD: (&str, &str) = ("dubbo-ca.inject", "true");
const NEW: (&str, &str) = ("rulecast.io/inject", "true");

/// Names of the variables of a pod's container that Dubbo's clients look for, and others.
fn split(pod: &k8s_openapi::api::core::v1::Pod) -> (usize, usize) {
    let variables = variables(pod, 0);
    let old = variables.iter().filter(|(name, _)| name.starts_with("DUBBO_")).count();
    (old, variables.len() - old)
}

#[tokio::test(flavor = "multi_thread")]
async fn each_label_gets_its_own_and_both_get_both() {
    let site = Site::start_with("webhook-dubbo.yaml", true).await;
    let old = site.namespace(&[OLD]).await;
    let both = site.namespace(&[OLD, NEW]).await;
    let none = site.namespace(&[]).await;
    let cases = [
        (&old, pod("plain"), (4, 0)),
        (&old, labelled("new", &[NEW]), (4, 7)),
        (&old, labelled("out", &[("dubbo-ca.inject", "false")]), (0, 0)),
        (&both, pod("plain"), (4, 7)),
        (&both, labelled("out", &[("dubbo-ca.inject", "false")]), (0, 7)),
        (&both, labelled("old", &[("rulecast.io/inject", "false")]), (4, 0)),
        (&none, labelled("old", &[OLD]), (4, 0)),
        (&none, labelled("both", &[OLD, NEW]), (4, 7)),
        (&none, pod("plain"), (0, 0)),
    ];
    for (namespace, pod, expected) in cases {
        let unchanged = site.count("unchanged");
        let stored = site.create(namespace, &pod).await;
        assert_eq!(split(&stored), expected, "{namespace} {:?}", stored.metadata.name);
        // The second changed what the first had seen: the server asks the first again.
        let again = site.count("unchanged") - unchanged;
        assert_eq!(again, u64::from(expected == (4, 7)), "{:?}", stored.metadata.name);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_clients_of_dubbo_find() {
    let site = Site::start_with("webhook-dubbo.yaml", true).await;
    let namespace = site.namespace(&[OLD]).await;
    let stored = site.create(&namespace, &pod("client")).await;
    let text = |name: &str, value: &str| (name.to_owned(), Some(value.to_owned()));
    assert_eq!(
        variables(&stored, 0),
        [
            text("DUBBO_CA_ADDRESS", "ca.example:7443"),
            text("DUBBO_CA_CERT_PATH", "/var/run/secrets/dubbo-ca-cert/ca.crt"),
            text("DUBBO_OIDC_TOKEN", "/var/run/secrets/dubbo-ca-token/token"),
            text("DUBBO_OIDC_TOKEN_TYPE", "dubbo-ca-token"),
        ]
    );
    let spec = json!(stored.spec);
    let token = &spec["volumes"][1]["projected"]["sources"][0]["serviceAccountToken"];
    let wanted = json!({ "audience": "dubbo-ca", "expirationSeconds": 1800, "path": "token" });
    assert_eq!(*token, wanted);
    assert_eq!(spec["volumes"][0]["configMap"]["name"], "rulecast-trust-bundle");
    let mounts = &spec["containers"][0]["volumeMounts"];
    assert_eq!(mounts[0]["mountPath"], "/var/run/secrets/dubbo-ca-cert");
    assert_eq!(mounts[1]["mountPath"], "/var/run/secrets/dubbo-ca-token");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_authority_without_dubbo_refuses_with_a_reason() {
    let site = Site::start_with("webhook-dubbo.yaml", false).await;
    let namespace = site.namespace(&[]).await;
    let refused =
        site.pods(&namespace).create(&PostParams::default(), &labelled("p", &[OLD])).await;
    let error = refused.expect_err("refused").to_string();
    assert!(error.contains("runs without compat-dubbo"), "{error}");
    assert_eq!(site.count("refused"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn its_configuration_is_the_plain_one_and_more() {
    let site = Site::start().await;
    let plain = bundled(&site.cluster, "webhook.yaml").await;
    let mut dubbo = bundled(&site.cluster, "webhook-dubbo.yaml").await;
    let webhooks = dubbo["webhooks"].as_array_mut().expect("a list");
    assert_eq!(webhooks.len(), 4);
    webhooks.truncate(2);
    assert_eq!(dubbo, plain);
}
