//! The CustomResourceDefinitions against the real server.
#![cfg(feature = "kube")]

#[path = "../../../api/tests/crds/cases.rs"]
mod cases;

use std::{collections::BTreeSet, fs, path::Path, time::Duration};

use cases::{Server, cases};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, ResourceExt,
    api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams},
};
use rulecast_api::{
    Kind,
    condition_route::ConditionRouteSpec,
    crd,
    kind::KINDS,
    rule_status::{
        ACCEPTED, Condition, ConditionStatus, LastAccepted, PROGRAMMED, Refusal, RuleStatus,
    },
};
use rulecast_kube_tests::{Cluster, Namespace};
use serde_json::{Value, json};

async fn cluster() -> Cluster {
    let cluster = Cluster::shared().await.expect("a server");
    cluster.apply_crds().await.expect("the definitions are taken");
    cluster
}

fn api(cluster: &Cluster, namespace: &Namespace) -> Api<DynamicObject> {
    api_of(Kind::CONDITION_ROUTE, cluster, namespace)
}

fn api_of(kind: Kind, cluster: &Cluster, namespace: &Namespace) -> Api<DynamicObject> {
    let (group, version) = kind.api_version.split_once('/').expect("a group");
    let gvk = GroupVersionKind::gvk(group, version, kind.name);
    let resource = ApiResource::from_gvk_with_plural(&gvk, kind.plural);
    Api::namespaced_with(cluster.client(), namespace, &resource)
}

fn object(name: &str, spec: &Value) -> DynamicObject {
    serde_json::from_value(json!({
        "apiVersion": "dubbo.apache.org/v1alpha1", "kind": "ConditionRoute",
        "metadata": { "name": name }, "spec": spec,
    }))
    .expect("an object")
}

/// kubectl with a fresh memory of what the server has; until it says what is wanted, since the
/// server publishes a new kind's schema a little later.
async fn kubectl(cluster: &Cluster, arguments: &[&str], wanted: impl Fn(&str) -> bool) -> String {
    let cache = tempfile::tempdir().expect("a folder");
    let cache = format!("--cache-dir={}", cache.path().display());
    let mut arguments = arguments.to_vec();
    arguments.push(&cache);
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    loop {
        let output = cluster.kubectl(&arguments).await.expect("kubectl runs");
        if output.status.success() && wanted(&output.stdout) {
            return output.stdout;
        }
        assert!(tokio::time::Instant::now() < deadline, "{arguments:?}: {output:?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// One line, single blanks.
fn flat(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[tokio::test]
async fn definitions_are_established_and_structural() {
    let cluster = cluster().await;
    let api: Api<CustomResourceDefinition> = Api::all(cluster.client());
    for kind in KINDS {
        let name = crd::definition(*kind).expect("a kind of Kubernetes")["metadata"]["name"].take();
        let found = api.get(name.as_str().expect("a name")).await.expect("it is there");
        let conditions = found.status.and_then(|status| status.conditions).unwrap_or_default();
        let holds: BTreeSet<&str> =
            conditions.iter().filter(|c| c.status == "True").map(|c| c.type_.as_str()).collect();
        assert_eq!(holds, BTreeSet::from(["Established", "NamesAccepted"]), "{conditions:?}");
        assert!(conditions.iter().all(|c| c.type_ != "NonStructuralSchema"), "{conditions:?}");
    }
}

#[tokio::test]
async fn examples_apply_and_mean_the_same() {
    let cluster = cluster().await;
    let namespace = cluster.namespace("crd-examples").await.expect("a namespace");
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let read = |folder| fs::read_dir(examples.join(folder)).expect("the folder is there");
    let mut count = 0;
    for entry in read("dubbo").chain(read("rulecast")) {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|extension| extension != "yaml") {
            continue;
        }
        // Only so that tests do not meet.
        let text = fs::read_to_string(&path).expect("it can be read");
        let text: String = text
            .lines()
            .map(|line| match line.starts_with("  namespace: ") {
                true => format!("  namespace: {namespace}\n"),
                false => format!("{line}\n"),
            })
            .collect();
        let name = path.file_stem().and_then(|name| name.to_str()).expect("a name");
        let apply = ["apply", "-f", "-"];
        let said = cluster.kubectl_with(&apply, &text).await.expect("kubectl runs");
        assert!(said.status.success(), "{name}: {said:?}");
        let server_side = ["apply", "--server-side", "--force-conflicts", "-f", "-"];
        let said = cluster.kubectl_with(&server_side, &text).await.expect("kubectl runs");
        assert!(said.status.success(), "{name}, server-side: {said:?}");

        let format = rulecast_api::manifest::Format::Yaml;
        let manifest = rulecast_api::manifest::parse(KINDS, text.as_bytes(), format);
        let written = manifest.documents[0].outcome.as_ref().expect("valid");
        let api = api_of(written.id.kind, &cluster, &namespace);
        let stored = api.get(name).await.expect("it is there").data["spec"].take();
        let stored = (written.id.kind.parse)(stored).expect("valid");
        assert_eq!(stored.to_json(), written.spec.to_json(), "{name}");
        assert_eq!(stored.encode(), written.spec.encode(), "{name}");
        count += 1;
    }
    assert!(count >= 4, "{count} examples");
}

#[tokio::test]
async fn specs_are_stored_or_refused_with_the_name_of_the_field() {
    let cluster = cluster().await;
    let namespace = cluster.namespace("crd-cases").await.expect("a namespace");
    let api = api(&cluster, &namespace);
    let rules = cluster.minor_version().await.expect("a version") >= 25;
    for case in cases() {
        let name = case.name;
        let answer = api.create(&PostParams::default(), &object(name, &case.spec)).await;
        let refusal = match case.server {
            Server::Accepts => None,
            Server::Refuses(words) => Some(words.to_vec()),
            Server::Rule(words) => rules.then(|| vec![words]),
        };
        match (answer, refusal) {
            (Ok(stored), None) => {
                let written = ConditionRouteSpec::parse(case.spec);
                let stored = ConditionRouteSpec::parse(stored.data["spec"].clone());
                match (written, stored) {
                    (Ok(written), Ok(stored)) => {
                        assert_eq!(written.to_json(), stored.to_json(), "{name}");
                    }
                    // The parser's verdict is the same on what is stored.
                    (written, stored) => {
                        let errors = stored.expect_err(name);
                        assert_eq!(Some(errors[0].path.as_str()), case.parser, "{name}");
                        assert_eq!(written.err(), Some(errors), "{name}");
                    }
                }
            }
            (Err(kube::Error::Api(status)), Some(words)) => {
                assert_eq!(status.code, 422, "{name}: {status:?}");
                let named = words.iter().all(|word| status.message.contains(word));
                assert!(named, "{name}: {words:?} in: {}", status.message);
            }
            (answer, refusal) => panic!("{name}: {answer:?} where {refusal:?} was to be"),
        }
    }
}

#[tokio::test]
async fn a_breaker_that_would_never_open_is_not_stored() {
    let cluster = cluster().await;
    let namespace = cluster.namespace("crd-breakers").await.expect("a namespace");
    let kind = Kind::CIRCUIT_BREAKER;
    let api = api_of(kind, &cluster, &namespace);
    let create = async |name: &str, threshold: Value| {
        let spec = json!({ "scope": "service", "key": "com.Foo", "errorPercent": threshold });
        let object = serde_json::from_value(json!({
            "apiVersion": kind.api_version, "kind": kind.name,
            "metadata": { "name": name }, "spec": spec,
        }));
        api.create(&PostParams::default(), &object.expect("an object")).await
    };
    for (name, threshold) in [("whole", json!(50)), ("fraction", json!(0.5))] {
        let stored = create(name, threshold).await.expect("it is stored").data["spec"].take();
        (kind.parse)(stored).expect("valid with its defaults");
    }
    if cluster.minor_version().await.expect("a version") >= 25 {
        for (name, threshold) in [("zero", json!(0)), ("none", Value::Null)] {
            let Err(kube::Error::Api(status)) = create(name, threshold).await else {
                panic!("{name} was stored")
            };
            assert!(status.message.contains("it would never open"), "{}", status.message);
        }
    }
}

#[tokio::test]
async fn kubectl_names_the_field_that_is_refused() {
    let cluster = cluster().await;
    let namespace = cluster.namespace("crd-kubectl").await.expect("a namespace");
    let manifest = format!(
        "apiVersion: dubbo.apache.org/v1alpha1\nkind: ConditionRoute\n\
         metadata:\n  name: a\n  namespace: {namespace}\n\
         spec:\n  configVersion: v3.0\n  scope: everything\n  key: com.example.Orders\n"
    );
    let said = cluster.kubectl_with(&["apply", "-f", "-"], &manifest).await.expect("kubectl runs");
    assert!(!said.status.success());
    assert!(said.stderr.contains("spec.scope"), "{}", said.stderr);
    assert!(said.stderr.contains("\"service\", \"application\""), "{}", said.stderr);
    // A field that is not known, before it would be dropped; once kubectl can know the others.
    kubectl(&cluster, &["explain", "conditionroute.spec"], |text| text.contains("scope")).await;
    let manifest = manifest.replace("everything", "service\n  forse: true");
    let said = cluster.kubectl_with(&["apply", "-f", "-"], &manifest).await.expect("kubectl runs");
    assert!(!said.status.success());
    assert!(said.stderr.contains("forse"), "{}", said.stderr);
}

#[tokio::test]
async fn defaults_are_filled_in() {
    let cluster = cluster().await;
    let namespace = cluster.namespace("crd-defaults").await.expect("a namespace");
    let spec = json!({ "configVersion": "v3.0", "scope": "application", "key": "shop" });
    let api = api(&cluster, &namespace);
    let stored = api.create(&PostParams::default(), &object("a", &spec)).await.expect("stored");
    let full = json!({
        "configVersion": "v3.0", "scope": "application", "key": "shop",
        "enabled": true, "force": false, "priority": 0,
    });
    assert_eq!(stored.data["spec"], full);
    assert!(stored.data.get("status").is_none(), "{}", stored.data);
}

#[tokio::test]
async fn explain_reads_like_documentation() {
    let cluster = cluster().await;
    let explain = |what: &'static str, wanted: &'static str| {
        let cluster = cluster.clone();
        async move {
            kubectl(&cluster, &["explain", what], |text| flat(text).contains(wanted)).await;
        }
    };
    explain("conditionroute", "Routes calls by conditions on the caller, the call and").await;
    explain("conditionroute.spec.conditions", "With configVersion v3.0 texts, \"when => then\"")
        .await;
    explain("conditionroute.spec.conditions", "With configVersion v3.1 objects").await;
    explain("conditionroute.spec.key", "[group/]interface[:version]").await;
    explain("cd.status.applied", "Clients of these that hold exactly this version.").await;
    let spec = kubectl(&cluster, &["explain", "cd.spec"], |text| text.contains("runtime")).await;
    let required: BTreeSet<&str> = spec
        .lines()
        .filter(|line| line.to_ascii_lowercase().contains("-required-"))
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert_eq!(required, BTreeSet::from(["configVersion", "key", "scope"]), "{spec}");
}

/// A status with something in every field.
fn status(generation: i64) -> RuleStatus {
    let condition = |kind: &str, status, reason: &str, message: &str| Condition {
        kind: kind.to_owned(),
        status,
        observed_generation: generation,
        last_transition_time: "2026-11-30T12:00:00Z".to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
    };
    RuleStatus {
        observed_generation: generation,
        conditions: vec![
            condition(ACCEPTED, ConditionStatus::False, "Invalid", "no"),
            condition(PROGRAMMED, ConditionStatus::True, "Applied", ""),
        ],
        matched: 3,
        applied: 2,
        rejected: 1,
        reasons: vec![Refusal { client: "spiffe://a/ns/b/sa/c".into(), reason: "".into() }],
        last_accepted: Some(LastAccepted {
            generation: 1,
            // With what no schema knows.
            spec: json!({ "key": "a", "conditions": ["a=b", { "x": 1 }], "former": [1, null] }),
        }),
    }
}

async fn apply_status(api: &Api<DynamicObject>, name: &str, status: &RuleStatus) -> DynamicObject {
    let patch = json!({
        "apiVersion": "dubbo.apache.org/v1alpha1", "kind": "ConditionRoute",
        "metadata": { "name": name },
        "status": status,
    });
    let params = PatchParams::apply("rulecast").force();
    api.patch_status(name, &params, &Patch::Apply(&patch)).await.expect("the status is taken")
}

#[tokio::test]
async fn status_and_spec_are_written_apart() {
    let cluster = cluster().await;
    let namespace = cluster.namespace("crd-status").await.expect("a namespace");
    let api = api(&cluster, &namespace);
    let spec = json!({
        "configVersion": "v3.0", "scope": "service", "key": "com.example.Orders",
        "conditions": ["a=b => c=d"],
    });
    let created = api.create(&PostParams::default(), &object("a", &spec)).await.expect("stored");
    assert_eq!(created.metadata.generation, Some(1));

    // A status leaves the generation alone, and is kept as it is, whole.
    let wanted = status(1);
    let applied = apply_status(&api, "a", &wanted).await;
    assert_eq!(applied.metadata.generation, Some(1));
    assert_ne!(applied.resource_version(), created.resource_version());
    let kept: RuleStatus = serde_json::from_value(applied.data["status"].clone()).expect("ours");
    assert_eq!(kept, wanted);
    // What is not said any more goes.
    let wanted = RuleStatus { last_accepted: None, reasons: Vec::new(), ..wanted };
    let applied = apply_status(&api, "a", &wanted).await;
    let kept: RuleStatus = serde_json::from_value(applied.data["status"].clone()).expect("ours");
    assert_eq!(kept, wanted);
    // And the same again changes nothing at all.
    let again = apply_status(&api, "a", &wanted).await;
    assert_eq!(again.resource_version(), applied.resource_version());

    // A spec written through status is ignored.
    let sneaked = json!({ "spec": { "key": "other" }, "status": { "matched": 9 } });
    let params = PatchParams::default();
    let answer = api.patch_status("a", &params, &Patch::Merge(&sneaked)).await.expect("taken");
    assert_eq!(answer.data["spec"], created.data["spec"]);
    assert_eq!(answer.data["status"]["matched"], 9);
    assert_eq!(answer.metadata.generation, Some(1));
    // A status written with the spec is ignored, and the spec's generation counts.
    let both = json!({ "spec": { "priority": 5 }, "status": { "matched": 7 } });
    let answer = api.patch("a", &params, &Patch::Merge(&both)).await.expect("taken");
    assert_eq!(answer.data["spec"]["priority"], 5);
    assert_eq!(answer.data["status"]["matched"], 9);
    assert_eq!(answer.metadata.generation, Some(2));
}

#[tokio::test]
async fn lists_show_key_and_counts() {
    let cluster = cluster().await;
    let namespace = cluster.namespace("crd-lists").await.expect("a namespace");
    let api = api(&cluster, &namespace);
    let spec =
        json!({ "configVersion": "v3.0", "scope": "application", "key": "shop", "enabled": false });
    api.create(&PostParams::default(), &object("new", &spec)).await.expect("stored");
    let spec =
        json!({ "configVersion": "v3.0", "scope": "service", "key": "g/com.example.Orders:1.0" });
    api.create(&PostParams::default(), &object("told", &spec)).await.expect("stored");
    apply_status(&api, "told", &status(1)).await;

    let cells = |text: &str| -> Vec<Vec<String>> {
        text.lines().map(|line| line.split_whitespace().map(str::to_owned).collect()).collect()
    };
    for what in ["cd", "rulecast", "conditionroutes", "conditionroute"] {
        let get = ["get", what, "--namespace", &namespace];
        let rows = cells(&kubectl(&cluster, &get, |text| text.contains("told")).await);
        let header = ["NAME", "KEY", "ENABLED", "MATCHED", "APPLIED", "REJECTED", "AGE"];
        assert_eq!(rows[0], header, "{what}");
        // Where several kinds are asked for, names tell them apart.
        let name = |name: &str| match what {
            "rulecast" => format!("conditionroute.dubbo.apache.org/{name}"),
            _ => name.to_owned(),
        };
        // Counts that nobody wrote are blank, not 0.
        assert_eq!(rows[1][..3], [&name("new"), "shop", "false"], "{what}");
        assert_eq!(rows[1].len(), 4, "{what}: {:?}", rows[1]);
        let told = [&name("told"), "g/com.example.Orders:1.0", "true", "3", "2", "1"];
        assert_eq!(rows[2][..6], told, "{what}");
        assert_eq!((rows.len(), rows[2].len()), (3, 7), "{what}: {rows:?}");
    }
    let get = ["get", "cd", "told", "--output=wide", "--namespace", &namespace];
    let rows = cells(&kubectl(&cluster, &get, |text| text.contains("told")).await);
    assert_eq!(rows[0][6..8], ["ACCEPTED", "PROGRAMMED"]);
    assert_eq!(rows[1][6..8], ["False", "True"]);
    let wait = ["wait", "--for=condition=Programmed", "cd/told", "--namespace", &namespace];
    kubectl(&cluster, &wait, |text| text.contains("condition met")).await;
}
