use proptest::prelude::*;

use super::*;

fn form() -> Form {
    Form::rulecast("ca.example:7443", "dds.example:7444", 3600)
}

fn run(pod: &Value, form: &Form) -> (Value, Injection) {
    let injection = inject(pod, form).expect("a pod");
    let mut patched = pod.clone();
    json_patch::patch(&mut patched, &injection.operations).expect("applies");
    (patched, injection)
}

fn plain() -> Value {
    json!({
        "metadata": { "generateName": "web-" },
        "spec": { "containers": [{ "name": "web", "image": "web:1" }] },
    })
}

#[test]
fn a_plain_pod_gets_everything() {
    let (patched, injection) = run(&plain(), &form());
    assert_eq!(injection.warnings, [""; 0]);
    let expected = json!({
        "metadata": {
            "generateName": "web-",
            "annotations": { "rulecast.io/injected": env!("CARGO_PKG_VERSION") },
        },
        "spec": {
            "containers": [{
                "name": "web",
                "image": "web:1",
                "volumeMounts": [
                    { "name": "rulecast-trust", "readOnly": true,
                      "mountPath": "/var/run/secrets/rulecast/trust" },
                    { "name": "rulecast-token", "readOnly": true,
                      "mountPath": "/var/run/secrets/rulecast/token" },
                ],
                "env": [
                    { "name": "RULECAST_CA_ADDRESS", "value": "ca.example:7443" },
                    { "name": "RULECAST_DDS_ADDRESS", "value": "dds.example:7444" },
                    { "name": "RULECAST_TRUST_BUNDLE",
                      "value": "/var/run/secrets/rulecast/trust/ca.crt" },
                    { "name": "RULECAST_TOKEN_FILE",
                      "value": "/var/run/secrets/rulecast/token/token" },
                    { "name": "RULECAST_NAMESPACE",
                      "valueFrom": { "fieldRef": { "fieldPath": "metadata.namespace" } } },
                    { "name": "RULECAST_POD_NAME",
                      "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } },
                    { "name": "RULECAST_APP", "value": "web" },
                ],
            }],
            "volumes": [
                { "name": "rulecast-trust", "configMap": { "name": "rulecast-trust-bundle" } },
                { "name": "rulecast-token", "projected": { "sources": [{ "serviceAccountToken": {
                    "audience": "rulecast-ca", "expirationSeconds": 3600, "path": "token" } }] } },
            ],
        },
    });
    assert_eq!(patched, expected);
}

#[test]
fn all_containers_and_init_containers_get_it_and_what_is_there_stays_first() {
    let pod = json!({
        "metadata": { "name": "p", "annotations": { "a": "b" }, "labels": {} },
        "spec": {
            "initContainers": [{ "name": "i", "env": [] }, { "name": "j", "env": null }],
            "containers": [
                { "name": "c", "volumeMounts": [{ "name": "data", "mountPath": "/data" }] },
                { "name": "d", "env": [{ "name": "A", "value": "1" }] },
            ],
            "volumes": [{ "name": "data", "emptyDir": {} }],
            "futureField": [1, { "x": null }],
        },
    });
    let (patched, _) = run(&pod, &form());
    for (kind, n) in [("initContainers", 0), ("initContainers", 1), ("containers", 0)] {
        let container = &patched["spec"][kind][n];
        assert_eq!(container["env"].as_array().map(Vec::len), Some(7), "{kind} {n}");
    }
    assert_eq!(patched["spec"]["containers"][1]["env"][0], json!({ "name": "A", "value": "1" }));
    assert_eq!(patched["spec"]["containers"][1]["env"].as_array().map(Vec::len), Some(8));
    assert_eq!(patched["spec"]["containers"][0]["volumeMounts"][0]["mountPath"], "/data");
    assert_eq!(patched["spec"]["volumes"].as_array().map(Vec::len), Some(3));
    assert_eq!(patched["spec"]["futureField"], pod["spec"]["futureField"]);
    assert_eq!(patched["metadata"]["annotations"]["a"], "b");
    assert_eq!(patched["metadata"]["annotations"][ANNOTATION], env!("CARGO_PKG_VERSION"));
}

#[test]
fn opted_out_pods_and_mirror_pods_stay_as_they_are() {
    for metadata in [
        json!({ "labels": { "rulecast.io/inject": "false" } }),
        json!({ "annotations": { "kubernetes.io/config.mirror": "x" } }),
    ] {
        let mut pod = plain();
        pod["metadata"] = metadata;
        assert_eq!(inject(&pod, &form()), Ok(Injection::default()));
    }
    let mut pod = plain();
    pod["metadata"]["labels"] = json!({ "dubbo-ca.inject": "false" });
    assert!(!inject(&pod, &form()).expect("a pod").operations.is_empty());
    assert_eq!(inject(&pod, &Form::dubbo("ca:1")), Ok(Injection::default()));
}

#[test]
fn what_the_author_wrote_wins() {
    let mut pod = plain();
    pod["spec"]["volumes"] = json!([{ "name": "rulecast-token", "emptyDir": {} }]);
    pod["spec"]["containers"] = json!([{
        "name": "web",
        "env": [{ "name": "RULECAST_APP", "value": "mine" }],
        "volumeMounts": [{ "name": "other", "mountPath": "/var/run/secrets//rulecast/trust/" }],
    }]);
    let (patched, injection) = run(&pod, &form());
    let container = &patched["spec"]["containers"][0];
    let env = container["env"].as_array().expect("list");
    assert_eq!(env.len(), 7);
    assert_eq!(env[0]["value"], "mine");
    assert_eq!(container["volumeMounts"].as_array().map(Vec::len), Some(2));
    assert_eq!(container["volumeMounts"][1]["name"], "rulecast-token");
    assert_eq!(patched["spec"]["volumes"], pod["spec"]["volumes"], "no trust volume: unused");
    assert_eq!(
        injection.warnings,
        [
            "spec.containers[0] already mounts something at /var/run/secrets/rulecast/trust: left \
             as it is, rulecast-trust is not mounted",
            "volume rulecast-token is not as the webhook would make it: left as it is",
        ]
    );
}

#[test]
fn places_that_are_taken() {
    let form = form();
    let trust = &form.mounts[0];
    for (path, taken) in [
        ("/var/run/secrets/rulecast/trust", true),
        ("/var/run/secrets/rulecast/trust/", true),
        ("/var/run/./secrets/x/../rulecast/trust/ca.crt", true),
        ("/var/run/secrets/rulecast", true),
        ("/var/run/secrets/rulecast/token", false),
        ("/var/run/secrets/rulecast/trust-2", false),
        ("/var/run/secrets", false),
        ("/", false),
        ("", false),
        ("C:\\var", false),
    ] {
        let there = json!({ "name": "x", "mountPath": path });
        assert_eq!(takes(&there, "mountPath", trust), taken, "{path}");
    }
    let mut pod = plain();
    pod["spec"]["containers"][0]["volumeDevices"] =
        json!([{ "name": "x", "devicePath": "/var/run/secrets/rulecast/token" }]);
    let (patched, injection) = run(&pod, &form);
    let mounts = patched["spec"]["containers"][0]["volumeMounts"].as_array().expect("list");
    assert_eq!(mounts.len(), 1);
    assert_eq!(injection.warnings.len(), 1);
}

#[test]
fn a_pod_as_the_server_stored_it_needs_nothing() {
    let (mut stored, _) = run(&plain(), &form());
    stored["spec"]["volumes"][0]["configMap"]["defaultMode"] = json!(420);
    stored["spec"]["volumes"][1]["projected"]["defaultMode"] = json!(420);
    stored["spec"]["containers"][0]["env"][4]["valueFrom"]["fieldRef"]["apiVersion"] = json!("v1");
    assert_eq!(inject(&stored, &form()), Ok(Injection::default()));
    // By hand, without our mark: complete is complete.
    let mut by_hand = stored.clone();
    by_hand["metadata"].as_object_mut().expect("metadata").remove("annotations");
    assert_eq!(inject(&by_hand, &form()), Ok(Injection::default()));
    // A container that came later is not left out.
    let late = json!({ "name": "late" });
    stored["spec"]["containers"].as_array_mut().expect("list").push(late);
    let (patched, injection) = run(&stored, &form());
    assert_eq!(injection.operations.len(), 2, "mounts and variables of one container");
    assert_eq!(patched["spec"]["volumes"], stored["spec"]["volumes"]);
    assert_eq!(patched["spec"]["containers"][1]["env"].as_array().map(Vec::len), Some(7));
}

#[test]
fn an_author_hears_of_volumes_that_are_other_than_ours() {
    let (pod, _) = run(&plain(), &form());
    let source = "/spec/volumes/1/projected/sources";
    let token = pod.pointer(source).expect("is there")[0].clone();
    let cases = [
        ("/spec/volumes/0/configMap/name", json!("mine"), 1),
        ("/spec/volumes/0/configMap", json!({ "name": "mine", "optional": true }), 1),
        ("/spec/volumes/0/configMap", json!({ "name": "rulecast-trust-bundle", "x": 1 }), 0),
        (source, json!([token, token]), 1),
        (source, json!([]), 1),
        (source, json!([{ "serviceAccountToken": { "path": "token" } }]), 1),
    ];
    for (path, value, warnings) in cases {
        let mut pod = pod.clone();
        *pod.pointer_mut(path).expect("is there") = value.clone();
        let injection = inject(&pod, &form()).expect("a pod");
        assert_eq!(injection.warnings.len(), warnings, "{path} {value}");
        assert_eq!(injection.operations, [], "{path} {value}");
    }
}

#[test]
fn both_forms_stand_side_by_side() {
    let dubbo = Form::dubbo("ca.example:7443");
    let (patched, injection) = run(&run(&plain(), &form()).0, &dubbo);
    assert_eq!(injection.warnings, [""; 0]);
    let container = &patched["spec"]["containers"][0];
    assert_eq!(container["volumeMounts"].as_array().map(Vec::len), Some(4));
    let env = container["env"].as_array().expect("list");
    assert_eq!(
        env[7..],
        [
            json!({ "name": "DUBBO_CA_ADDRESS", "value": "ca.example:7443" }),
            json!({ "name": "DUBBO_CA_CERT_PATH",
                "value": "/var/run/secrets/dubbo-ca-cert/ca.crt" }),
            json!({ "name": "DUBBO_OIDC_TOKEN",
                "value": "/var/run/secrets/dubbo-ca-token/token" }),
            json!({ "name": "DUBBO_OIDC_TOKEN_TYPE", "value": "dubbo-ca-token" }),
        ]
    );
    assert_eq!(
        patched["spec"]["volumes"][3]["projected"]["sources"][0]["serviceAccountToken"],
        json!({ "audience": "dubbo-ca", "expirationSeconds": 1800, "path": "token" })
    );
    assert_eq!(run(&patched, &form()).1, Injection::default());
    assert_eq!(run(&patched, &dubbo).1, Injection::default());
}

#[test]
fn the_application_is_named_as_people_would() {
    let owner = |kind, name| {
        json!([{ "kind": "Node", "name": "n" },
        { "kind": kind, "name": name, "controller": true }])
    };
    let cases = [
        (json!({ "labels": { "app.kubernetes.io/name": "a", "app": "b" }, "name": "p" }), "a"),
        (json!({ "labels": { "app.kubernetes.io/name": "", "app": "b" }, "name": "p" }), "b"),
        (
            json!({ "labels": { "pod-template-hash": "5d4f" },
            "ownerReferences": owner("ReplicaSet", "web-app-5d4f"), "name": "p" }),
            "web-app",
        ),
        (json!({ "ownerReferences": owner("ReplicaSet", "by-hand") }), "by-hand"),
        (json!({ "ownerReferences": owner("StatefulSet", "db-0") }), "db-0"),
        (json!({ "ownerReferences": owner("Job", "backup-28390000") }), "backup"),
        (json!({ "ownerReferences": owner("Job", "backup-2839") }), "backup-2839"),
        (json!({ "ownerReferences": [{ "kind": "X", "name": "x" }], "name": "p" }), "p"),
        (json!({ "generateName": "web-" }), "web"),
        (json!({ "name": "", "generateName": "web-" }), "web"),
        (json!({}), ""),
    ];
    for (metadata, expected) in cases {
        let pod = json!({ "metadata": metadata });
        assert_eq!(application(pod.as_object().expect("object")), expected, "{metadata}");
    }
}

#[test]
fn what_is_no_pod_is_named_without_its_content() {
    let cases = [
        (json!(null), "the object is no object"),
        (json!({}), "metadata is no object"),
        (json!({ "metadata": { "labels": ["secret"] } }), "metadata.labels is no object"),
        (json!({ "metadata": {} }), "spec is no object"),
        (json!({ "metadata": {}, "spec": { "volumes": {} } }), "spec.volumes is no list"),
        (
            json!({ "metadata": {}, "spec": { "containers": ["secret"] } }),
            "spec.containers[0] is no object",
        ),
        (
            json!({ "metadata": {}, "spec": { "initContainers": [{}, { "env": "secret" }] } }),
            "spec.initContainers[1].env is no list",
        ),
    ];
    for (pod, expected) in cases {
        assert_eq!(inject(&pod, &form()).expect_err("refused").to_string(), expected);
    }
}

#[test]
fn warnings_are_few() {
    let taken =
        json!({ "volumeMounts": [{ "name": "x", "mountPath": "/var/run/secrets/rulecast" }] });
    let mut pod = plain();
    pod["spec"]["containers"] = vec![taken; 100].into();
    let (_, injection) = run(&pod, &form());
    assert_eq!(injection.warnings.len(), MAX_WARNINGS + 1);
    assert_eq!(injection.warnings[MAX_WARNINGS], "and 192 warnings more");
}

/// Any JSON, with keys and values that the injection looks at among them.
fn json_value() -> impl Strategy<Value = Value> {
    let word = prop::sample::select(vec![
        "metadata",
        "spec",
        "containers",
        "initContainers",
        "volumes",
        "volumeMounts",
        "env",
        "name",
        "mountPath",
        "labels",
        "annotations",
        "app",
        "rulecast-trust",
        "RULECAST_APP",
        "rulecast-token",
        "ownerReferences",
        "controller",
        "/var/run/secrets/rulecast/trust",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        word.clone().prop_map(Value::from),
        ".*".prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 64, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::vec((word.clone(), inner), 0..6).prop_map(|entries| {
                entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
            }),
        ]
    })
}

/// `None`, or a list of a few of `items`.
fn some_of(items: Vec<Value>) -> impl Strategy<Value = Option<Value>> {
    let len = items.len();
    prop::option::of(prop::sample::subsequence(items, 0..=len).prop_shuffle().prop_map(Value::from))
}

fn container() -> impl Strategy<Value = Value> {
    let env = vec![
        json!({ "name": "RULECAST_APP", "value": "mine" }),
        json!({ "name": "RULECAST_POD_NAME", "value": "$(RULECAST_APP)" }),
        json!({ "name": "PATH", "value": "/bin" }),
        json!({ "value": "nameless" }),
    ];
    let mounts = vec![
        json!({ "name": "data", "mountPath": "/data" }),
        json!({ "name": "rulecast-token", "mountPath": "/elsewhere" }),
        json!({ "name": "data", "mountPath": "/var/run/secrets/rulecast/trust/x" }),
        json!({ "name": "rulecast-token", "mountPath": "/var/run/secrets/rulecast/token" }),
        json!({ "name": "data", "mountPath": "/var/run/secrets/rulecast" }),
    ];
    (some_of(env), some_of(mounts)).prop_map(|(env, mounts)| {
        let mut container = json!({ "name": "c", "unknown": { "to": ["us"] } });
        if let Some(env) = env {
            container["env"] = env;
        }
        if let Some(mounts) = mounts {
            container["volumeMounts"] = mounts;
        }
        container
    })
}

fn pod() -> impl Strategy<Value = Value> {
    let volumes = vec![
        json!({ "name": "data", "emptyDir": {} }),
        json!({ "name": "rulecast-trust", "configMap": { "name": "mine" } }),
        form().mounts[1].source.clone(),
        json!({ "name": "rulecast-token", "projected": { "sources": [] } }),
    ];
    let annotations = prop::option::of(prop::sample::select(vec![
        json!({}),
        json!({ "a": "b" }),
        json!({ "rulecast.io/injected": "0.0.0" }),
    ]));
    let containers = || prop::option::of(prop::collection::vec(container(), 0..4));
    (annotations, some_of(volumes), containers(), containers()).prop_map(
        |(annotations, volumes, init, containers)| {
            let mut pod = json!({ "metadata": { "name": "p" }, "spec": { "x": 1 } });
            if let Some(annotations) = annotations {
                pod["metadata"]["annotations"] = annotations;
            }
            for (key, value) in [
                ("volumes", volumes),
                ("initContainers", init.map(Value::from)),
                ("containers", containers.map(Value::from)),
            ] {
                if let Some(value) = value {
                    pod["spec"][key] = value;
                }
            }
            pod
        },
    )
}

/// Whether `after` is `before` with entries added, and lists made longer at their ends.
fn extends(after: &Value, before: &Value) -> bool {
    match (after, before) {
        (Value::Object(after), Value::Object(before)) => before
            .iter()
            .all(|(key, before)| after.get(key).is_some_and(|after| extends(after, before))),
        (Value::Array(after), Value::Array(before)) => {
            after.len() >= before.len() && after.iter().zip(before).all(|(a, b)| extends(a, b))
        }
        _ => after == before,
    }
}

fn names(list: &Value) -> Vec<&str> {
    list.as_array().into_iter().flatten().filter_map(|item| item["name"].as_str()).collect()
}

proptest! {
    #[test]
    fn twice_is_once_and_what_was_there_stays(pod in pod(), dubbo: bool) {
        let form = if dubbo { Form::dubbo("ca:1") } else { form() };
        let (once, _) = run(&pod, &form);
        prop_assert!(extends(&once, &pod), "{once}");
        let (twice, again) = run(&once, &form);
        prop_assert_eq!(again.operations, []);
        prop_assert_eq!(&twice, &once);
        for kind in ["initContainers", "containers"] {
            for container in once["spec"][kind].as_array().into_iter().flatten() {
                let there = names(&container["env"]);
                for variable in &form.variables {
                    prop_assert_eq!(there.iter().filter(|n| **n == variable.name).count(), 1);
                }
                // Every volume of ours that is mounted is there, once.
                for mount in &form.mounts {
                    let mounted = names(&container["volumeMounts"]).contains(&mount.volume);
                    let volumes = names(&once["spec"]["volumes"]);
                    let count = volumes.iter().filter(|n| **n == mount.volume).count();
                    prop_assert!(!mounted || count == 1 || names(&pod["spec"]["volumes"])
                        .iter().filter(|n| **n == mount.volume).count() > 1);
                }
            }
        }
    }

    #[test]
    fn no_json_breaks_it(value in json_value(), metadata in json_value(), spec in json_value()) {
        let _ = inject(&value, &form());
        let pod = json!({ "metadata": {}, "spec": spec });
        for pod in [pod, json!({ "metadata": metadata, "spec": { "containers": [{}] } })] {
            if let Ok(injection) = inject(&pod, &form()) {
                let mut patched = pod.clone();
                json_patch::patch(&mut patched, &injection.operations).expect("applies");
                let again = inject(&patched, &form()).expect("still a pod");
                prop_assert_eq!(again.operations, []);
            }
        }
    }
}
