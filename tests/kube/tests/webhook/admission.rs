//! Who is asked about, and what a pod gets.

use k8s_openapi::api::core::v1::{Container, Pod};
use kube::api::PostParams;
use serde_json::{Value, json};

use crate::site::{Site, eventually, from, labelled, pod, variables};

const IN: (&str, &str) = ("rulecast.io/inject", "true");
const OUT: (&str, &str) = ("rulecast.io/inject", "false");
const NAMES: [&str; 7] = [
    "RULECAST_CA_ADDRESS",
    "RULECAST_DDS_ADDRESS",
    "RULECAST_TRUST_BUNDLE",
    "RULECAST_TOKEN_FILE",
    "RULECAST_NAMESPACE",
    "RULECAST_POD_NAME",
    "RULECAST_APP",
];

fn names(container: &Container) -> Vec<&str> {
    container.env.iter().flatten().map(|variable| &*variable.name).collect()
}

fn is_injected(pod: &Pod) -> bool {
    !variables(pod, 0).is_empty()
}

#[tokio::test(flavor = "multi_thread")]
async fn those_who_asked_and_nobody_else() {
    let site = Site::start().await;
    let inside = site.namespace(&[IN]).await;
    let outside = site.namespace(&[]).await;
    let out = site.namespace(&[OUT]).await;
    let cases = [
        (&inside, labelled("plain", &[]), true),
        (&inside, labelled("both", &[IN]), true),
        (&inside, labelled("other", &[("rulecast.io/inject", "yes")]), true),
        (&inside, labelled("out", &[OUT]), false),
        (&outside, labelled("in", &[IN]), true),
        (&outside, labelled("plain", &[]), false),
        (&outside, labelled("out", &[OUT]), false),
        (&outside, labelled("other", &[("rulecast.io/inject", "yes")]), false),
        (&out, labelled("in", &[IN]), true),
        (&out, labelled("plain", &[]), false),
    ];
    for (namespace, pod, expected) in cases {
        let before = site.calls();
        let stored = site.create(namespace, &pod).await;
        let name = stored.metadata.name.as_deref();
        assert_eq!(is_injected(&stored), expected, "{namespace} {name:?}");
        let calls = site.calls() - before;
        assert_eq!(calls, u64::from(expected), "{namespace} {name:?}: one call, or none");
    }
    assert_eq!(site.count("refused") + site.count("unread") + site.count("unchanged"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_container_gets_all_of_it() {
    let site = Site::start().await;
    let namespace = site.namespace(&[IN]).await;
    let pod: Pod = from(json!({
        "metadata": { "generateName": "web-", "annotations": { "mine": "1" } },
        "spec": {
            "serviceAccountName": "default",
            "initContainers": [
                { "name": "first", "image": "i:1" },
                { "name": "second", "image": "i:1", "env": [{ "name": "A", "value": "b" }] },
            ],
            "containers": [
                { "name": "main", "image": "m:1", "env": [{ "name": "RULECAST_APP", "value": "mine" }] },
                { "name": "side", "image": "s:1",
                  "volumeMounts": [{ "name": "data", "mountPath": "/data" }] },
            ],
            "volumes": [{ "name": "data", "emptyDir": {} }],
        },
    }));
    let stored = site.create(&namespace, &pod).await;
    let name = stored.metadata.name.as_deref().expect("a name");
    assert!(name.starts_with("web-") && name.len() > 4, "{name}");
    let annotations = stored.metadata.annotations.as_ref().expect("annotations");
    assert_eq!(annotations["mine"], "1");
    assert_eq!(annotations["rulecast.io/injected"], env!("CARGO_PKG_VERSION"));

    let spec = stored.spec.as_ref().expect("a spec");
    let containers: Vec<&Container> =
        spec.init_containers.iter().flatten().chain(&spec.containers).collect();
    assert_eq!(containers.len(), 4);
    for container in &containers {
        for name in NAMES {
            let count = names(container).iter().filter(|found| **found == name).count();
            assert_eq!(count, 1, "{name} in {}", container.name);
        }
        let mounts = json!(container.volume_mounts);
        for part in ["trust", "token"] {
            let wanted = json!({
                "name": format!("rulecast-{part}"), "readOnly": true,
                "mountPath": format!("/var/run/secrets/rulecast/{part}"),
            });
            assert!(mounts.as_array().is_some_and(|m| m.contains(&wanted)), "{mounts}");
        }
    }
    let value = |container: &Container, name: &str| {
        let variable = container.env.iter().flatten().find(|variable| variable.name == name);
        json!(variable.expect("is there"))
    };
    assert_eq!(value(containers[0], "RULECAST_APP")["value"], "web");
    assert_eq!(value(containers[2], "RULECAST_APP")["value"], "mine", "the author's");
    assert_eq!(value(containers[0], "RULECAST_CA_ADDRESS")["value"], "ca.example:7443");
    assert_eq!(value(containers[0], "RULECAST_DDS_ADDRESS")["value"], "dds.example:7444");
    for (name, field) in
        [("RULECAST_NAMESPACE", "metadata.namespace"), ("RULECAST_POD_NAME", "metadata.name")]
    {
        let from = &value(containers[1], name)["valueFrom"]["fieldRef"];
        assert_eq!(*from, json!({ "apiVersion": "v1", "fieldPath": field }));
    }
    let volumes = json!(spec.volumes);
    assert_eq!(
        volumes[1],
        json!({ "name": "rulecast-trust",
            "configMap": { "name": "rulecast-trust-bundle", "defaultMode": 420 } })
    );
    assert_eq!(
        volumes[2]["projected"]["sources"],
        json!([{ "serviceAccountToken":
            { "audience": "rulecast-ca", "expirationSeconds": 3600, "path": "token" } }])
    );
    assert_eq!(volumes.as_array().map(Vec::len), Some(3));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dumped_pod_is_created_again_as_it_was() {
    let site = Site::start().await;
    let namespace = site.namespace(&[IN]).await;
    let first = site.create(&namespace, &pod("first")).await;
    let get = ["get", "pod", "first", "--namespace", &*namespace, "--output=json"];
    let dump = site.cluster.kubectl(&get).await.expect("kubectl runs").success().expect("a pod");
    let mut again: Value = serde_json::from_str(&dump).expect("JSON");
    again["metadata"]["name"] = json!("second");
    for mark in ["uid", "resourceVersion", "creationTimestamp", "managedFields"] {
        again["metadata"].as_object_mut().expect("metadata").remove(mark);
    }
    let unchanged = site.count("unchanged");
    let create = ["create", "--namespace", &*namespace, "--filename=-"];
    let made = site.cluster.kubectl_with(&create, &again.to_string()).await.expect("kubectl runs");
    assert_eq!(made.stderr, "", "no warnings");
    made.success().expect("created");
    assert_eq!(site.count("unchanged"), unchanged + 1, "nothing to add");
    let second = site.pods(&namespace).get("second").await.expect("is there");
    let app = |pod: &Pod| variables(pod, 0).last().cloned();
    assert_eq!(app(&first), Some(("RULECAST_APP".into(), Some("first".into()))));
    assert_eq!(second.spec, first.spec);
    assert_eq!(second.metadata.annotations, first.metadata.annotations);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_of_one_megabyte() {
    let site = Site::start().await;
    let namespace = site.namespace(&[IN]).await;
    // Of characters that JSON writes longer, in a few containers.
    let text = "\"\\<&>\n\u{1}é".repeat(2_000);
    let containers: Vec<Value> = (0..25)
        .map(|n| {
            json!({ "name": format!("c{n}"), "image": "c:1", "env": [
                { "name": "TEXT", "value": text }, { "name": "MORE", "value": text },
            ] })
        })
        .collect();
    let big: Pod = from(json!({
        "metadata": { "name": "big" }, "spec": { "serviceAccountName": "default", "containers": containers },
    }));
    let size = serde_json::to_vec(&big).expect("JSON").len();
    assert!(size > 1_000_000, "{size}");
    let stored = site.create(&namespace, &big).await;
    for n in 0..25 {
        let variables = variables(&stored, n);
        assert_eq!(variables.len(), 2 + NAMES.len());
        assert_eq!(variables[0].1.as_deref(), Some(&*text));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_shows_it_and_leaves_nothing() {
    let site = Site::start().await;
    let namespace = site.namespace(&[IN]).await;
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    let shown = site.pods(&namespace).create(&dry, &pod("dry")).await.expect("allowed");
    assert_eq!(variables(&shown, 0).len(), NAMES.len());
    let stored = site.pods(&namespace).get_opt("dry").await.expect("answers");
    assert_eq!(stored, None);
    let manifest = serde_json::to_string(&json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "dry" },
        "spec": { "serviceAccountName": "default", "containers": [{ "name": "main", "image": "main:1" }] },
    }));
    let apply =
        ["apply", "--dry-run=server", "--output=json", "--namespace", &*namespace, "--filename=-"];
    let shown = site.cluster.kubectl_with(&apply, &manifest.expect("JSON")).await;
    let shown = shown.expect("kubectl runs").success().expect("allowed");
    assert!(shown.contains("RULECAST_CA_ADDRESS"), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_author_wrote_is_left_and_said() {
    let site = Site::start().await;
    let namespace = site.namespace(&[IN]).await;
    let manifest = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "own" },
        "spec": {
            "serviceAccountName": "default",
            "containers": [{ "name": "main", "image": "main:1", "volumeMounts": [
                { "name": "own", "mountPath": "/var/run/secrets/rulecast/trust" },
            ] }],
            "volumes": [{ "name": "own", "emptyDir": {} }],
        },
    });
    let create = ["create", "--namespace", &*namespace, "--filename=-"];
    let made = site.cluster.kubectl_with(&create, &manifest.to_string()).await;
    let made = made.expect("kubectl runs");
    assert!(
        made.stderr.contains(
            "Warning: spec.containers[0] already mounts something at \
             /var/run/secrets/rulecast/trust"
        ),
        "{}",
        made.stderr
    );
    made.success().expect("created");
    let stored = site.pods(&namespace).get("own").await.expect("is there");
    let spec = json!(stored.spec);
    let mounts = spec["containers"][0]["volumeMounts"].as_array().expect("a list");
    let mounted: Vec<_> = mounts.iter().map(|mount| mount["name"].as_str()).collect();
    assert_eq!(mounted, [Some("own"), Some("rulecast-token")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_webhook_nobody_starts_without_trust_and_others_start() {
    let mut site = Site::start().await;
    let inside = site.namespace(&[IN]).await;
    let outside = site.namespace(&[]).await;
    site.stop().await;
    for (namespace, pod) in [(&inside, pod("plain")), (&outside, labelled("in", &[IN]))] {
        let refused = site.pods(namespace).create(&PostParams::default(), &pod).await;
        let error = refused.expect_err("refused").to_string();
        assert!(error.contains("inject.rulecast.io"), "it says who: {error}");
    }
    site.create(&inside, &labelled("out", &[OUT])).await;
    site.create(&outside, &pod("plain")).await;
    let elsewhere = site.cluster.namespace("elsewhere").await.expect("a namespace");
    site.create(&elsewhere, &labelled("in", &[IN])).await;

    site.start_again().await;
    let stored = eventually("it is called again", async || {
        site.pods(&inside).create(&PostParams::default(), &pod("plain")).await.ok()
    })
    .await;
    assert!(is_injected(&stored));
}
