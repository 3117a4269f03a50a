use proptest::prelude::*;

use super::*;

fn reviewer(compat_dubbo: bool) -> Reviewer {
    let config = WebhookConfig { compat_dubbo, ..WebhookConfig::in_namespace("rulecast-system") };
    Reviewer::new(config)
}

fn review() -> Value {
    json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "u-1",
            "kind": { "group": "", "version": "v1", "kind": "Pod" },
            "resource": { "group": "", "version": "v1", "resource": "pods" },
            "requestKind": { "group": "", "version": "v1", "kind": "Pod" },
            "operation": "CREATE",
            "namespace": "shop",
            "userInfo": { "username": "admin" },
            "object": {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": { "generateName": "web-" },
                "spec": { "containers": [{ "name": "web" }] },
            },
            "oldObject": null,
            "dryRun": false,
        },
    })
}

fn ask(review: &Value, asked: Asked) -> Answer {
    reviewer(true).answer(review.to_string().as_bytes(), asked).expect("a review")
}

#[test]
fn a_new_pod_is_patched() {
    let answer = ask(&review(), Asked::Rulecast);
    assert_eq!(answer.verdict, Verdict::Injected);
    assert_eq!((&*answer.namespace, &*answer.name), ("shop", "web-"));
    assert_eq!(answer.review["apiVersion"], "admission.k8s.io/v1");
    assert_eq!(answer.review["kind"], "AdmissionReview");
    let response = &answer.review["response"];
    assert_eq!(response["uid"], "u-1");
    assert_eq!(response["allowed"], true);
    assert_eq!(response["patchType"], "JSONPatch");
    let patch = BASE64_STANDARD.decode(response["patch"].as_str().expect("text")).expect("base64");
    let patch: json_patch::Patch = serde_json::from_slice(&patch).expect("a patch");
    let mut pod = review()["request"]["object"].take();
    json_patch::patch(&mut pod, &patch).expect("applies");
    assert_eq!(pod["spec"]["volumes"][0]["name"], "rulecast-trust");
    assert_eq!(pod["spec"]["containers"][0]["env"][6]["value"], "web");
}

#[test]
fn the_path_decides_the_form() {
    let answer = ask(&review(), Asked::Dubbo);
    assert_eq!(answer.verdict, Verdict::Injected);
    let patch = answer.review["response"]["patch"].as_str().expect("text");
    let patch = String::from_utf8(BASE64_STANDARD.decode(patch).expect("base64")).expect("text");
    assert!(patch.contains("DUBBO_OIDC_TOKEN") && !patch.contains("RULECAST_APP"), "{patch}");
}

#[test]
fn without_dubbo_nobody_starts_by_its_label() {
    let answer =
        reviewer(false).answer(review().to_string().as_bytes(), Asked::Dubbo).expect("a review");
    assert_eq!(answer.verdict, Verdict::Refused);
    let response = &answer.review["response"];
    assert_eq!((&response["uid"], &response["allowed"]), (&json!("u-1"), &json!(false)));
    assert_eq!(response["status"]["code"], 403);
    assert_eq!(response.get("patch"), None);
}

#[test]
fn a_dry_run_gets_the_same_answer() {
    let mut dry = review();
    dry["request"]["dryRun"] = true.into();
    let answers = [review(), dry].map(|review| ask(&review, Asked::Rulecast).review);
    assert_eq!(answers[0], answers[1]);
}

#[test]
fn what_is_not_ours_is_let_through() {
    let cases: [(&str, Value); 9] = [
        ("/request/operation", "UPDATE".into()),
        ("/request/operation", "DELETE".into()),
        ("/request/kind/kind", "Deployment".into()),
        ("/request/kind/group", "pods.example".into()),
        ("/request/resource/resource", "bindings".into()),
        ("/request/namespace", "kube-system".into()),
        ("/request/namespace", "rulecast-system".into()),
        ("/request/object/metadata", json!({ "labels": { "rulecast.io/inject": "false" } })),
        ("/request/operation", "CONNECT".into()),
    ];
    for (path, value) in cases {
        let mut review = review();
        *review.pointer_mut(path).expect("is there") = value.clone();
        let answer = ask(&review, Asked::Rulecast);
        assert_eq!(answer.verdict, Verdict::Unchanged, "{path} {value}");
        let response = &answer.review["response"];
        assert_eq!(*response, json!({ "uid": "u-1", "allowed": true }), "{path} {value}");
    }
    let mut review = review();
    review["request"]["subResource"] = "ephemeralcontainers".into();
    assert_eq!(ask(&review, Asked::Rulecast).verdict, Verdict::Unchanged);
}

#[test]
fn a_pod_that_cannot_be_read_is_refused_with_its_uid() {
    for object in [Value::Null, json!([]), json!({ "metadata": {}, "spec": "s3cret" })] {
        let mut review = review();
        review["request"]["object"] = object;
        let answer = ask(&review, Asked::Rulecast);
        assert_eq!(answer.verdict, Verdict::Refused);
        assert_eq!(answer.review["response"]["uid"], "u-1");
        assert_eq!(answer.review["response"]["allowed"], false);
        assert_eq!(answer.review["response"]["status"]["code"], 400);
        assert!(!answer.review.to_string().contains("s3cret"));
    }
}

#[test]
fn what_is_no_review_is_no_answer() {
    let bad: [fn(&mut Value); 7] = [
        |r| r["apiVersion"] = "admission.k8s.io/v1beta1".into(),
        |r| r["kind"] = "Pod".into(),
        |r| r["request"] = Value::Null,
        |r| r["request"]["uid"] = "".into(),
        |r| r["request"]["uid"] = 1.into(),
        |r| r["request"]["operation"] = Value::Null,
        |r| *r = json!([]),
    ];
    for (n, spoil) in bad.into_iter().enumerate() {
        let mut review = review();
        spoil(&mut review);
        let answer = reviewer(true).answer(review.to_string().as_bytes(), Asked::Rulecast);
        assert_eq!(answer.err(), Some(NotAReview), "case {n}");
    }
    let deep = "[".repeat(100_000);
    for body in ["", "{", "\u{0}", &deep] {
        assert_eq!(reviewer(true).answer(body.as_bytes(), Asked::Rulecast).err(), Some(NotAReview));
    }
}

proptest! {
    #[test]
    fn every_answer_carries_the_uid(uid in "[a-f0-9-]{1,36}", object in "\\PC*", name in "\\PC*") {
        let mut review = review();
        review["request"]["uid"] = uid.clone().into();
        review["request"]["name"] = name.into();
        if let Ok(object) = serde_json::from_str(&object) {
            review["request"]["object"] = object;
        }
        prop_assert_eq!(&ask(&review, Asked::Rulecast).review["response"]["uid"], &json!(uid));
    }
}
