use k8s_openapi::{
    api::{
        authentication::v1::UserInfo,
        core::v1::{PodSpec, PodStatus},
    },
    apimachinery::pkg::apis::meta::v1::Time,
};

use super::*;

/// What is wrong, and how it comes to be.
type Spoil<T> = (&'static str, fn(&mut T));

fn answer() -> TokenReviewStatus {
    let extra = [(POD_NAME, "web-0"), (POD_UID, "u-1")];
    TokenReviewStatus {
        authenticated: Some(true),
        audiences: Some(vec![KUBERNETES_AUDIENCE.into()]),
        error: None,
        user: Some(UserInfo {
            username: Some("system:serviceaccount:shop:web".into()),
            extra: Some(extra.map(|(k, v)| (k.into(), vec![v.into()])).into()),
            ..UserInfo::default()
        }),
    }
}

fn of(node: Option<&str>) -> Account {
    Account {
        namespace: "shop".into(),
        name: "web".into(),
        pod: "web-0".into(),
        uid: "u-1".into(),
        node: node.map(String::from),
    }
}

fn pod() -> Pod {
    let mut pod = Pod::default();
    pod.metadata.namespace = Some("shop".into());
    pod.metadata.name = Some("web-0".into());
    pod.metadata.uid = Some("u-1".into());
    let (account, node) = (Some("web".into()), Some("node-a".into()));
    pod.spec =
        Some(PodSpec { service_account_name: account, node_name: node, ..PodSpec::default() });
    pod
}

fn extra(status: &mut TokenReviewStatus) -> &mut std::collections::BTreeMap<String, Vec<String>> {
    status.user.as_mut().and_then(|user| user.extra.as_mut()).expect("there")
}

#[test]
fn an_answer_names_account_and_pod() {
    assert_eq!(account(&answer(), KUBERNETES_AUDIENCE), Ok(of(None)));
    let mut newer = answer();
    extra(&mut newer).insert(NODE_NAME.into(), vec!["node-a".into()]);
    newer.audiences.as_mut().expect("there").push("other".into());
    assert_eq!(account(&newer, KUBERNETES_AUDIENCE), Ok(of(Some("node-a"))));
}

#[test]
fn answers_that_say_too_little_are_refused() {
    let cases: [Spoil<TokenReviewStatus>; 12] = [
        ("not authenticated", |s| s.authenticated = Some(false)),
        ("authenticated left out", |s| s.authenticated = None),
        ("no user", |s| s.user = None),
        ("no audiences: an old API server", |s| s.audiences = None),
        ("empty audiences", |s| s.audiences = Some(vec![])),
        ("another audience", |s| s.audiences = Some(vec!["rulecast-ca2".into()])),
        ("a person", |s| s.user.as_mut().expect("there").username = Some("ann".into())),
        ("a node", |s| {
            s.user.as_mut().expect("there").username = Some("system:node:node-a".into());
        }),
        ("a path", |s| {
            let name = Some("system:serviceaccount:shop:web/../x".into());
            s.user.as_mut().expect("there").username = name;
        }),
        ("no pod", |s| drop(extra(s).remove(POD_NAME))),
        ("no uid", |s| drop(extra(s).remove(POD_UID))),
        ("two pods", |s| extra(s).get_mut(POD_NAME).expect("there").push("web-1".into())),
    ];
    for (what, spoil) in cases {
        let mut status = answer();
        spoil(&mut status);
        let error = account(&status, KUBERNETES_AUDIENCE).expect_err(what);
        assert_eq!(error.code(), Code::ServiceAccountToken, "{what}: {error}");
    }
    let mut long = answer();
    (long.authenticated, long.error) = (None, Some("x\n".repeat(10_000)));
    assert!(account(&long, KUBERNETES_AUDIENCE).expect_err("refused").message().len() < 500);
}

#[test]
fn a_pod_is_compared_with_the_token() {
    let now = Timestamp::now();
    let node = Some("node-a".to_owned());
    let facts = PodFacts { name: "web-0".into(), uid: "u-1".into(), node };
    assert_eq!(known(Some(&pod()), &of(None), now), Ok(facts.clone()));
    assert_eq!(known(Some(&pod()), &of(Some("node-a")), now), Ok(facts.clone()));
    let mut ending = pod();
    ending.metadata.deletion_timestamp = Some(Time(now + Duration::from_secs(30)));
    assert_eq!(known(Some(&ending), &of(None), now), Ok(facts), "within its grace period");

    let cases: [Spoil<Pod>; 9] = [
        ("another uid", |p| p.metadata.uid = Some("u-2".into())),
        ("no uid", |p| p.metadata.uid = None),
        ("another namespace", |p| p.metadata.namespace = Some("other".into())),
        ("deleted", |p| {
            p.metadata.deletion_timestamp = Some(Time(Timestamp::now() - Duration::from_secs(1)));
        }),
        ("another account", |p| {
            p.spec.as_mut().expect("there").service_account_name = Some("db".into());
        }),
        ("the default account", |p| p.spec.as_mut().expect("there").service_account_name = None),
        ("succeeded", |p| {
            p.status = Some(PodStatus { phase: Some("Succeeded".into()), ..PodStatus::default() });
        }),
        ("failed", |p| {
            p.status = Some(PodStatus { phase: Some("Failed".into()), ..PodStatus::default() });
        }),
        ("no spec", |p| p.spec = None),
    ];
    for (what, spoil) in cases {
        let mut pod = pod();
        spoil(&mut pod);
        let error = known(Some(&pod), &of(None), now).expect_err(what);
        assert_eq!(error.code(), Code::PodGone, "{what}: {error}");
    }
    let moved = known(Some(&pod()), &of(Some("node-b")), now).expect_err("a pod never moves");
    assert_eq!(moved.code(), Code::PodGone);
    let mut unscheduled = pod();
    unscheduled.spec.as_mut().expect("there").node_name = None;
    let error = known(Some(&unscheduled), &of(Some("node-a")), now).expect_err("not scheduled");
    assert_eq!(error.code(), Code::PodGone);
    assert_eq!(known(None, &of(None), now).expect_err("gone").code(), Code::PodGone);
    let mut default = pod();
    default.spec.as_mut().expect("there").service_account_name = Some(String::new());
    let account = Account { name: "default".into(), ..of(None) };
    known(Some(&default), &account, now).expect("an empty name is the default account");
}
