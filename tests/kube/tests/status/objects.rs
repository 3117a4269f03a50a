//! What stands on objects, and how it gets there.

use kube::{
    ResourceExt as _,
    api::{Patch, PatchParams},
};
use rulecast_api::rule_status::ConditionStatus::{False, True, Unknown};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::site::{Plane, Site, condition, programmed, status_of};

fn leader() -> (watch::Sender<bool>, watch::Receiver<bool>) {
    watch::channel(true)
}

#[tokio::test]
async fn kubectl_waits_for_a_rule_that_is_in_force() {
    let site = Site::new("waits").await;
    let (_lead, leads) = leader();
    let _plane = Plane::start(&site, leads).await;
    let manifest = format!(
        "apiVersion: {}\nkind: ConditionRoute\nmetadata:\n  name: a\nspec:\n  configVersion: v3.0\n  \
         scope: service\n  key: com.example.Orders\n  conditions: [\"=> region=$region\"]\n",
        site.kind.api_version
    );
    site.kubectl(&["apply", "-f", "-"], &manifest).await;
    let rule = site.named("a");
    let programmed_in_time = ["wait", "--for=condition=Programmed", &rule, "--timeout=20s"];
    site.kubectl(&programmed_in_time, "").await;
    site.kubectl(&["wait", "--for=condition=Accepted", &rule, "--timeout=20s"], "").await;

    let object = site.object("a").await;
    let status = status_of(&object).expect("a status");
    assert_eq!((object.metadata.generation, status.observed_generation), (Some(1), 1));
    assert_eq!((status.matched, status.applied, status.rejected), (0, 0, 0));
    assert_eq!(programmed(&status), ("NoClients", 1));
    // By server-side apply, of the status and nothing else.
    let ours: Vec<_> = object
        .managed_fields()
        .iter()
        .filter(|entry| entry.manager.as_deref() == Some("rulecast-dds"))
        .collect();
    assert_eq!(ours.len(), 1);
    assert_eq!(ours[0].operation.as_deref(), Some("Apply"));
    let fields = serde_json::to_value(&ours[0].fields_v1).expect("JSON");
    let fields: Vec<_> = fields.as_object().expect("an object").keys().cloned().collect();
    assert_eq!(fields, ["f:status"]);
    let shown = site.kubectl(&["get", &rule], "").await;
    let columns: Vec<_> = shown.lines().nth(1).expect("a line").split_whitespace().collect();
    assert_eq!(columns[1..6], ["com.example.Orders", "true", "0", "0", "0"], "{shown}");
}

#[tokio::test]
async fn counts_and_conditions_follow_the_clients() {
    let site = Site::new("counts").await;
    let (_lead, leads) = leader();
    let plane = Plane::start(&site, leads).await;
    let (mut one, mut two) = (plane.client(&site, "one"), plane.client(&site, "two"));
    for client in [&mut one, &mut two] {
        let view = client.sees(0).await;
        client.applies(view, &[]);
    }
    site.rule("a", "=> region=$region").await;
    let (first, second) = (one.sees(1).await, two.sees(1).await);
    one.applies(first, &[]);
    let status = site.until("a", |s| (s.matched, s.applied) == (2, 1)).await;
    assert_eq!(condition(&status, "Programmed").status, Unknown);
    two.applies(second, &[]);
    let status = site.until("a", |s| (s.matched, s.applied) == (2, 2)).await;
    assert_eq!(programmed(&status), ("Applied", 1));
    let since = condition(&status, "Programmed").last_transition_time.clone();
    time::OffsetDateTime::parse(&since, &time::format_description::well_known::Rfc3339)
        .expect("a time");

    site.rule("a", "=> region=other").await;
    let (first, second) = (one.sees_another().await, two.sees_another().await);
    one.applies(first, &[]);
    two.applies(second, &[&format!("a/{}", site.namespace)]);
    let status = site.until("a", |s| s.rejected == 1).await;
    assert_eq!((programmed(&status), status.applied), (("Rejected", 2), 1));
    let client = format!("spiffe://td/ns/{}/app/two", site.namespace);
    assert_eq!((&status.reasons[0].client, status.reasons.len()), (&client, 1));
    let message = &condition(&status, "Programmed").message;
    assert_eq!(*message, format!("1 of 2 clients refuses it: {client}: RC0601 cannot"));
    let first = one.sees_now();
    one.applies(first, &[&format!("a/{}", site.namespace)]);
    site.until("a", |s| s.rejected == 2).await;
    for client in [&mut one, &mut two] {
        let view = client.sees_now();
        client.applies(view, &[]);
    }
    let status = site.until("a", |s| programmed(s) == ("Applied", 2)).await;
    assert_eq!((status.rejected, status.reasons.len()), (0, 0), "nothing of it stays");

    // One that never answers is named when its time is over.
    let mut silent = plane.client(&site, "silent");
    silent.sees(1).await;
    site.rule("b", "=> region=other").await;
    silent.sees(2).await;
    for client in [&mut one, &mut two] {
        let view = client.sees(2).await;
        client.applies(view, &[]);
    }
    let status = site.until("b", |s| programmed(s) == ("Lagging", 1)).await;
    assert_eq!((status.matched, status.applied), (3, 2));
    let message = &condition(&status, "Programmed").message;
    assert!(message.ends_with(&format!("10 s: spiffe://td/ns/{}/app/silent", site.namespace)));
}

#[tokio::test]
async fn an_invalid_version_leaves_the_last_good_one_on_the_object() {
    let site = Site::new("lastgood").await;
    let (lead, leads) = leader();
    let plane = Plane::start(&site, leads.clone()).await;
    site.rule("a", "=> region=$region").await;
    site.until("a", |s| programmed(s) == ("NoClients", 1)).await;
    site.rule("a", "method==x => ").await;
    let status = site.until("a", |s| programmed(s) == ("LastGood", 2)).await;
    let accepted = condition(&status, "Accepted");
    assert_eq!((accepted.status, accepted.reason.as_str()), (False, "Invalid"));
    assert!(accepted.message.contains("spec.conditions[0]"), "{}", accepted.message);
    let last = status.last_accepted.clone().expect("the last good version");
    assert_eq!(last.generation, 1);
    assert_eq!(last.spec["conditions"][0], json!("=> region=$region"));
    // Another plane takes it from there, and leaves it there.
    drop(plane);
    lead.send_replace(false);
    let before = site.object("a").await.resource_version();
    let (_lead, leads) = leader();
    let plane = Plane::start(&site, leads).await;
    site.rule("b", "=> region=$region").await;
    site.until("b", |s| programmed(s) == ("NoClients", 1)).await;
    let snapshot = plane.views.shown().snapshot;
    assert_eq!(snapshot.rules().count(), 2, "the last good version is in force");
    assert_eq!(site.object("a").await.resource_version(), before);
    assert_eq!(plane.written(), ["b"]);
    site.rule("a", "=> region=other").await;
    let status = site.until("a", |s| programmed(s) == ("NoClients", 3)).await;
    assert_eq!(status.last_accepted, None);
    assert_eq!(condition(&status, "Accepted").status, True);
}

#[tokio::test]
async fn what_others_write_into_a_status_stays_theirs() {
    let site = Site::new("others").await;
    let (_lead, leads) = leader();
    let plane = Plane::start(&site, leads).await;
    site.rule("a", "=> region=$region").await;
    let ours = site.until("a", |s| programmed(s) == ("NoClients", 1)).await;
    let theirs = json!({
        "type": "Reviewed", "status": "True", "reason": "Yes", "message": "m",
        "observedGeneration": 1, "lastTransitionTime": "2026-11-30T12:00:00Z",
    });
    let patch = json!({
        "apiVersion": site.kind.api_version, "kind": site.kind.name,
        "metadata": { "name": "a" },
        "status": { "conditions": [theirs] },
    });
    let params = PatchParams::apply("reviewer");
    site.api().patch_status("a", &params, &Patch::Apply(&patch)).await.expect("applied");
    site.rule("a", "=> region=other").await;
    let status = site.until("a", |s| programmed(s) == ("NoClients", 2)).await;
    let kept = status.conditions.iter().find(|c| c.kind == "Reviewed").expect("it stays");
    assert_eq!(serde_json::to_value(kept).expect("JSON"), theirs);
    let time = |s| condition(s, "Programmed").last_transition_time.clone();
    assert_eq!(time(&status), time(&ours), "true as before");
    assert_eq!(plane.written(), ["a", "a"]);
    let spec: Value = site.object("a").await.data["spec"].clone();
    assert_eq!(spec["conditions"][0], json!("=> region=other"), "nobody touched it");
}
