//! Who gets a certificate, and who does not.

use std::time::Duration;

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD as BASE64};
use kube::api::{Patch, PatchParams};
use rcgen::{KeyPair, PKCS_RSA_SHA256, SigningKey as _};
use rulecast_api::Code;
use rulecast_identity::{AttestedFacts, KubernetesCredential, PeerIdentity, PodFacts, Svid};
use serde_json::{Value, json};

use crate::site::{AUDIENCE, Site, TRUST_DOMAIN, code, delete, key, new_key, pod, pods, until};

const KIND: (&str, &str) = ("authorization-type", "rulecast-kubernetes-token");

fn facts(svid: &Svid) -> AttestedFacts {
    PeerIdentity::from_der(&svid.chain[0]).expect("ours").facts.expect("facts")
}

/// A token with other claims, signed as the API server signs.
fn forged(site: &Site, token: &str, change: impl FnOnce(&mut Value)) -> String {
    let mut parts = token.split('.');
    let (header, claims) = (parts.next().expect("a header"), parts.next().expect("claims"));
    let mut claims: Value =
        serde_json::from_slice(&BASE64.decode(claims).expect("base64")).expect("JSON");
    change(&mut claims);
    let text = format!("{header}.{}", BASE64.encode(claims.to_string()));
    let key = std::fs::read_to_string(site.cluster.folder().join("sa.key")).expect("the key");
    let key = KeyPair::from_pem_and_sign_algo(&key, &PKCS_RSA_SHA256).expect("RSA");
    let signature = key.sign(text.as_bytes()).expect("signed");
    format!("{text}.{}", BASE64.encode(signature))
}

#[tokio::test]
async fn a_pod_gets_its_identity_and_the_next_one() {
    let site = Site::new().await;
    let ca = site.start().await;
    let web = pod(&site.cluster, &site.namespace, "web-0", "web", Some("node-a")).await;
    let (namespace, name, uid) = key(&web);
    let first = site.join(&ca, &site.token(&web).await).await.expect("joined");
    let spiffe = format!("spiffe://{TRUST_DOMAIN}/ns/{namespace}/sa/web");
    assert_eq!(first.spiffe.to_string(), spiffe);
    let wanted = AttestedFacts {
        namespace,
        application: "web".into(),
        method: "kubernetes".into(),
        token_id: None,
        pod: Some(PodFacts { name, uid, node: Some("node-a".into()) }),
    };
    assert_eq!(facts(&first), wanted);
    let second = ca.client().renew(&first, &new_key(), None).await.expect("renewed");
    assert_eq!(second.spiffe.to_string(), spiffe);
    assert_eq!(facts(&second), wanted);
    assert_ne!(second.chain[0], first.chain[0]);

    // A certificate of one pod is not good for a name of another.
    let other = format!("spiffe://{TRUST_DOMAIN}/ns/{}/sa/other", site.namespace.name());
    let csr = new_key().csr(Some(&other.parse().expect("a name"))).expect("csr");
    assert_eq!(code(ca.ask(&site, &[], csr, Some(&second)).await), Code::CsrIdentity);
    ca.stop().await;
}

#[tokio::test]
async fn a_node_that_comes_later_is_attested_at_renewal() {
    let site = Site::new().await;
    let ca = site.start().await;
    let web = pod(&site.cluster, &site.namespace, "web-0", "web", None).await;
    let first = site.join(&ca, &site.token(&web).await).await.expect("joined");
    assert_eq!(facts(&first).pod.expect("a pod").node, None);
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding", "metadata": {"name": "web-0"},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "node-b"},
    });
    let namespace = site.namespace.name();
    let path = format!("/api/v1/namespaces/{namespace}/pods/web-0/binding");
    let bound = site
        .cluster
        .kubectl_with(&["create", "--raw", &path, "-f", "-"], &binding.to_string())
        .await;
    bound.expect("kubectl").success().expect("bound");
    let second = ca.client().renew(&first, &new_key(), None).await.expect("renewed");
    assert_eq!(facts(&second).pod.expect("a pod").node.as_deref(), Some("node-b"));
}

#[tokio::test]
async fn a_deleted_pod_gets_nothing_more_at_once() {
    let site = Site::new().await;
    let ca = site.start().await;
    let web = pod(&site.cluster, &site.namespace, "web-0", "web", None).await;
    let token = site.token(&web).await;
    let svid = site.join(&ca, &token).await.expect("joined");
    delete(&site.cluster, &web, 0).await;
    // The API server notices by itself after some seconds, which may be over here.
    let gone = |code: Code| matches!(code, Code::PodGone | Code::ServiceAccountToken);
    assert!(gone(code(site.join(&ca, &token).await)));
    let renewed = ca.client().renew(&svid, &new_key(), None).await;
    assert_eq!(code(renewed), Code::PodGone);

    // One of the same name has a token of its own.
    let next = pod(&site.cluster, &site.namespace, "web-0", "web", None).await;
    assert!(gone(code(site.join(&ca, &token).await)));
    assert_eq!(code(ca.client().renew(&svid, &new_key(), None).await), Code::PodGone);
    site.join(&ca, &site.token(&next).await).await.expect("the new one joins");
}

#[tokio::test]
async fn a_pod_keeps_its_identity_until_its_grace_period_ends() {
    let site = Site::new().await;
    let ca = site.start().await;
    let web = pod(&site.cluster, &site.namespace, "web-0", "web", Some("node-a")).await;
    let token = site.token(&web).await;
    let svid = site.join(&ca, &token).await.expect("joined");
    delete(&site.cluster, &web, 600).await;
    let svid = ca.client().renew(&svid, &new_key(), None).await.expect("it is still at work");
    site.join(&ca, &token).await.expect("and may start anew");
    // No kubelet removes it, as when its node is lost.
    delete(&site.cluster, &web, 1).await;
    let refused =
        until("a refusal", async || ca.client().renew(&svid, &new_key(), None).await.err()).await;
    assert_eq!(refused.code(), Code::PodGone, "{refused}");
    assert!(pods(&site.cluster, &site.namespace).get_opt("web-0").await.expect("answer").is_some());
}

#[tokio::test]
async fn a_pod_that_is_over_gets_nothing_more() {
    let site = Site::new().await;
    let ca = site.start().await;
    let job = pod(&site.cluster, &site.namespace, "job", "job", None).await;
    let token = site.token(&job).await;
    let svid = site.join(&ca, &token).await.expect("joined");
    let over = Patch::Merge(json!({"status": {"phase": "Succeeded"}}));
    let pods = pods(&site.cluster, &site.namespace);
    pods.patch_status("job", &PatchParams::default(), &over).await.expect("patched");
    assert_eq!(code(site.join(&ca, &token).await), Code::PodGone);
    assert_eq!(code(ca.client().renew(&svid, &new_key(), None).await), Code::PodGone);
}

#[tokio::test]
async fn a_pods_certificate_is_renewed_until_its_end_and_not_after() {
    let site = Site::new().await;
    let ca = site.start().await;
    let web = pod(&site.cluster, &site.namespace, "web-0", "web", None).await;
    let credential =
        KubernetesCredential { token: site.token(&web).await.into(), roots: site.roots().await };
    let short = Some(Duration::from_secs(2));
    let svid = ca.client().join_kubernetes(&credential, &new_key(), short).await.expect("joined");
    let svid = ca.client().renew(&svid, &new_key(), short).await.expect("renewed");
    let refused =
        until("the end", async || ca.client().renew(&svid, &new_key(), None).await.err()).await;
    assert_eq!(refused.code(), Code::PeerExpired, "{refused}");
    // It has its token.
    ca.client().join_kubernetes(&credential, &new_key(), None).await.expect("joined");
}

#[tokio::test]
async fn tokens_that_prove_too_little_are_refused() {
    let site = Site::new().await;
    let ca = site.start().await;
    let (cluster, namespace) = (&site.cluster, site.namespace.name());
    let web = pod(cluster, namespace, "web-0", "web", None).await;
    let (_, name, uid) = key(&web);
    let token = site.token(&web).await;
    let bound = Some((name.as_str(), uid.as_str()));
    let other_audience =
        cluster.token(namespace, "web", "somebody-else", bound, 600).await.expect("a token");
    let server = "https://kubernetes.default.svc";
    let default_audience =
        cluster.token(namespace, "web", server, bound, 600).await.expect("a token");
    let unbound = cluster.token(namespace, "web", AUDIENCE, None, 600).await.expect("a token");
    let expired = forged(&site, &token, |claims| {
        for time in ["iat", "nbf", "exp"] {
            let at = claims[time].as_i64().expect("a time");
            claims[time] = (at - 3600).into();
        }
    });
    let foreign = {
        let mut parts: Vec<&str> = token.split('.').collect();
        let signature = BASE64.encode([7; 256]);
        parts[2] = &signature;
        parts.join(".")
    };
    let cases = [
        ("another audience", other_audience),
        ("the API server's audience", default_audience),
        ("not of a pod", unbound),
        ("expired", expired),
        ("signed by somebody else", foreign),
        ("no token", "garbage".into()),
        ("not ours", "a.b.c".into()),
    ];
    for (what, token) in cases {
        let refused = site.join(&ca, &token).await.expect_err(what);
        assert_eq!(refused.code(), Code::ServiceAccountToken, "{what}: {refused}");
        assert!(!refused.to_string().contains(&token), "{what}: {refused}");
    }
    site.join(&ca, &forged(&site, &token, |_| {})).await.expect("a forgery that changes nothing");
    site.join(&ca, &token).await.expect("the pod's own");
}

#[tokio::test]
async fn a_pod_of_another_account_or_uid_is_refused() {
    let site = Site::new().await;
    let ca = site.start().await;
    let web = pod(&site.cluster, &site.namespace, "web-0", "web", None).await;
    let db = pod(&site.cluster, &site.namespace, "db-0", "db", None).await;
    let (_, _, uid) = key(&web);
    // The API server binds no token to the pod of another account, but would accept it.
    let other = forged(&site, &site.token(&db).await, |claims| {
        claims["kubernetes.io"]["pod"] = json!({"name": "web-0", "uid": uid});
    });
    assert_eq!(code(site.join(&ca, &other).await), Code::PodGone);
    let other = forged(&site, &site.token(&db).await, |claims| {
        claims["kubernetes.io"]["pod"]["uid"] = "00000000-0000-0000-0000-000000000000".into();
    });
    assert_eq!(code(site.join(&ca, &other).await), Code::ServiceAccountToken);
}

#[tokio::test]
async fn nobody_gets_the_name_of_the_authority() {
    let site = Site::new().await;
    let ca = site.start().await;
    let system = "rulecast-system";
    let token = site.cluster.token(system, "rulecast-ca", AUDIENCE, None, 600).await;
    token.expect("makes namespace and account");
    let name = format!("ca-{}", site.namespace.name());
    let own = pod(&site.cluster, system, &name, "rulecast-ca", None).await;
    assert_eq!(code(site.join(&ca, &site.token(&own).await).await), Code::PeerIdentity);
    delete(&site.cluster, &own, 0).await;
}

#[tokio::test]
async fn the_credential_that_is_shown_is_the_one_that_counts() {
    let site = Site::new().await;
    let ca = site.start().await;
    let web = pod(&site.cluster, &site.namespace, "web-0", "web", None).await;
    let bearer = format!("Bearer {}", site.token(&web).await);
    let good = ("authorization", bearer.as_str());
    let svid = site.join(&ca, bearer.trim_start_matches("Bearer ")).await.expect("joined");
    let csr = || new_key().csr(None).expect("csr");
    let answer = ca.ask(&site, &[KIND, good], csr(), None).await.expect("issued");
    assert_eq!(answer.spiffe_id, svid.spiffe.to_string());

    let bad = ("authorization", "Bearer a.b.c");
    let join = ("authorization-type", "rulecast-join-token");
    let join_token = ("authorization", "Bearer AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA");
    // Beside a certificate that would be good.
    for (metadata, wanted) in [
        (&[KIND, bad][..], Code::ServiceAccountToken),
        (&[KIND, good, good], Code::CredentialMissing),
        (&[KIND], Code::CredentialMissing),
        (&[good], Code::CredentialMissing),
        (&[join, join_token], Code::CredentialMissing),
        (&[join, good], Code::CredentialMissing),
    ] {
        let answer = ca.ask(&site, metadata, csr(), Some(&svid)).await;
        assert_eq!(code(answer), wanted, "{metadata:?}");
    }
    assert_eq!(code(ca.ask(&site, &[], csr(), None).await), Code::CredentialMissing);

    let named = |name: &str| {
        let name = format!("spiffe://{TRUST_DOMAIN}/ns/{}/sa/{name}", site.namespace.name());
        new_key().csr(Some(&name.parse().expect("a name"))).expect("csr")
    };
    ca.ask(&site, &[KIND, good], named("web"), None).await.expect("its own name");
    let other = ca.ask(&site, &[KIND, good], named("db"), None).await;
    assert_eq!(code(other), Code::CsrIdentity);
    let none = ca.ask(&site, &[KIND, good], b"no request".to_vec(), None).await;
    assert_eq!(code(none), Code::CsrInvalid);
    let long = format!("Bearer {}", "x".repeat(15_000));
    let long = ca.ask(&site, &[KIND, ("authorization", &long)], csr(), None).await;
    assert_eq!(code(long), Code::ServiceAccountToken);
}
