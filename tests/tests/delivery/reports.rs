//! What rules made of calls comes from the SDK to the plane, and only from those who have them.

use std::time::Duration;

use rulecast_api::{
    Code, Digest,
    proto::{
        admin::v1::RuleStatus,
        report::v1::{
            Given, ReportRequest, RuleReport, Verdict, report_service_client::ReportServiceClient,
        },
    },
};
use rulecast_identity::{ConnectOptions, Expected, IdentityHandle, connect, tls};
use rulecast_sdk::{
    Client, Endpoint, EndpointSet, Inbound, Tuning,
    metrics::{self, Outcome},
};
use serde_json::{Value, json};
use tonic::transport::Channel;

use crate::{
    client::{Stream, subscribe},
    note::{CALLERS, ROUTES, manifest, route},
    site::{Plane, Site, soon},
};

const SERVICE: &str = "com.example.Orders";

/// A policy in shadow.
fn shadow(name: &str, spec: Value) -> Value {
    let mut document = manifest(CALLERS, "shop", name, spec);
    document["metadata"]["annotations"] = json!({ "rulecast.io/enforcement": "shadow" });
    document
}

fn only(method: &str) -> Value {
    let values = json!([{ "type": "equals", "value": method }]);
    json!({ "action": "ALLOW", "rules": [{ "when": [{ "key": "method", "values": values }] }] })
}

fn count(rule: &RuleStatus, verdict: &str) -> u64 {
    rule.verdicts.iter().find(|given| given.verdict == verdict).map_or(0, |given| given.count)
}

async fn client(site: &Site, plane: &Plane) -> Client {
    let mut tuning = Tuning::default();
    tuning.report_interval = Some(Duration::from_millis(20));
    let connecting = Client::builder()
        .plane(plane.address.to_string())
        .ca(site.authority.address.to_string())
        .join_token(site.authority.token("shop", "orders"))
        .namespace("shop")
        .application("orders")
        .subscribe([CALLERS.type_name, ROUTES.type_name])
        .tuning(tuning)
        .connect();
    soon("the client connects", connecting).await.expect("connected")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_shadow_rule_would_do_comes_to_the_plane() {
    let site = Site::new().await;
    site.write("policy", &shadow("policy", only("get")));
    site.write("route", &route("shop", "route", SERVICE, "method=get => region=b"));
    let plane = site.plane().await;
    let client = client(&site, &plane).await;

    let caller = "spiffe://td.test/ns/shop/app/web";
    let call = Inbound::new().principal(caller).path("/orders?token=secret");
    for method in ["get", "put", "get", "put", "put"] {
        assert!(client.authorize(&call.method(method)).is_allowed(), "shadows deny nothing");
    }
    let endpoints =
        ["a", "a", "b"].map(|region| Endpoint::new("10.0.0.1", 1).with("region", region));
    let endpoints = EndpointSet::new(endpoints).expect("a set");
    for method in ["get", "put"] {
        client.route(&client.request(SERVICE).method(method), &endpoints);
    }

    let told = plane.rule("policy/shop", |rule| count(rule, "would_deny") == 3).await;
    assert!(told.shadow);
    assert_eq!(count(&told, "would_apply"), 2, "{told:?}");
    let denied = told.verdicts.iter().find(|given| given.verdict == "would_deny").expect("told");
    assert_eq!(denied.sample, format!("would deny put /orders of {caller}"));
    assert!(denied.sampled_at > 0);
    let told = plane.rule("route/shop", |rule| count(rule, "skipped") == 1).await;
    assert_eq!((told.shadow, count(&told, "applied")), (false, 1), "{told:?}");

    // Here too.
    let metrics = client.metrics();
    assert_eq!((metrics.count(Outcome::WouldDeny), metrics.count(Outcome::Allowed)), (3, 2));
    assert_eq!(metrics.count(Outcome::Routed), 2);
    let policy = metrics.rule(CALLERS.type_name, "policy/shop").expect("asked");
    assert_eq!((policy.calls(), policy.count(metrics::Verdict::WouldDeny)), (5, 3));
    let line = "rulecast_rule_decisions_total{kind=\"AuthorizationPolicy\",rule=\"policy/shop\",\
                verdict=\"would_deny\"} 3\n";
    assert!(metrics.openmetrics().contains(line), "{}", metrics.openmetrics());

    // More adds up; another version begins anew.
    client.authorize(&call.method("put"));
    plane.rule("policy/shop", |rule| count(rule, "would_deny") == 4).await;
    site.write("policy", &shadow("policy", only("put")));
    plane.rule("policy/shop", |rule| rule.applied == 1 && rule.verdicts.is_empty()).await;
    for method in ["put", "put", "head"] {
        client.authorize(&call.method(method));
    }
    let told = plane.rule("policy/shop", |rule| count(rule, "would_deny") == 1).await;
    assert_eq!(count(&told, "would_apply"), 2, "{told:?}");
    client.shutdown().await;
    plane.end().await;
}

async fn channel(plane: &Plane, identity: &IdentityHandle) -> Channel {
    let tls = tls::client_config(identity, Expected::dds()).expect("a configuration");
    connect(&plane.address.to_string(), tls, &ConnectOptions::default()).await.expect("connected")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_reports_on_rules_of_others() {
    let site = Site::new().await;
    site.write("policy", &shadow("policy", only("get")));
    let plane = site.plane().await;
    let [ours, others] = ["shop", "pay"].map(|namespace| site.identity(namespace, "web"));
    let (ours, others) = (ours.await, others.await);
    let mut stream = Stream::open(&plane, &ours, subscribe(CALLERS)).await.expect("let in");
    let digest = stream.whole(CALLERS).await.rules["policy/shop"].0;
    let report = |digest: Digest| RuleReport {
        r#type: CALLERS.type_name.into(),
        key: "policy/shop".into(),
        digest: digest.to_bytes(),
        given: vec![Given { verdict: Verdict::WouldDeny.into(), count: 1, sample: "x".into() }],
    };
    let ask = async |identity: &IdentityHandle, rules: Vec<RuleReport>| {
        let mut client = ReportServiceClient::new(channel(&plane, identity).await);
        let answer = client.report(ReportRequest { rules }).await;
        answer.map(|answer| answer.into_inner().passed_over)
    };
    assert_eq!(ask(&others, vec![report(digest)]).await.expect("answered"), 1);
    let old = report(Digest::of(b"another version"));
    assert_eq!(ask(&ours, vec![old, report(digest)]).await.expect("answered"), 1);
    let told = plane.rule("policy/shop", |rule| !rule.verdicts.is_empty()).await;
    assert_eq!(count(&told, "would_deny"), 1, "{told:?}");
    let refused = ask(&ours, vec![report(digest); 257]).await.expect_err("too many");
    assert_eq!(refused.code(), tonic::Code::InvalidArgument);
    assert!(refused.message().starts_with(Code::RequestInvalid.as_str()), "{refused}");
    plane.end().await;
}
