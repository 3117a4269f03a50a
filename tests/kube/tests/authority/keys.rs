//! The authority in its Secret.

use std::time::{Duration, SystemTime};

use k8s_openapi::{
    ByteString,
    api::core::v1::{ConfigMap, Secret},
};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use rulecast_api::Code;
use rulecast_ca::{Authority, authority::Parts, kubernetes::keys::AuthoritySecret};
use rustls::pki_types::CertificateDer;
use serde_json::json;
use time::OffsetDateTime;

use crate::site::{SECRET, Site, TRUST_DOMAIN, new_key, pod, until};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// The Secret as the authority's own service account sees it.
async fn secret(site: &Site) -> AuthoritySecret {
    secret_of(site, TRUST_DOMAIN).await
}

async fn secret_of(site: &Site, trust_domain: &str) -> AuthoritySecret {
    let client = rulecast_cluster::connect(&site.config().cluster).await.expect("a client");
    AuthoritySecret::new(client, &site.namespace, SECRET, trust_domain)
}

async fn read(site: &Site) -> Secret {
    site.secrets().get(SECRET).await.expect("there")
}

fn bytes(text: &str) -> ByteString {
    ByteString(text.as_bytes().to_vec())
}

async fn write(site: &Site, parts: &[(&str, &str)]) -> Secret {
    let mut secret = Secret::default();
    secret.metadata.name = Some(SECRET.into());
    secret.data = Some(parts.iter().map(|(name, text)| ((*name).into(), bytes(text))).collect());
    site.secrets().create(&Default::default(), &secret).await.expect("made")
}

/// An authority whose intermediate has `left` of a year left, as data of a Secret.
fn aged(left: Duration) -> Vec<(&'static str, String)> {
    let parts = Parts::generate(TRUST_DOMAIN).expect("made");
    let root = pem::parse(&*parts.root).expect("PEM");
    let root = CertificateDer::from(root.into_contents());
    let text = parts.root_key.as_ref().expect("a key");
    let root_key = KeyPair::from_pem(text).expect("a key");
    let issuer = Issuer::from_ca_cert_der(&root, root_key).expect("an issuer");
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.use_authority_key_identifier_extension = true;
    let end = SystemTime::now() + left;
    params.not_before = OffsetDateTime::from(end - DAY * 365);
    params.not_after = OffsetDateTime::from(end);
    let key = KeyPair::generate().expect("a key");
    let certificate = params.signed_by(&key, &issuer).expect("signed").pem();
    vec![
        ("authority.json", String::clone(&parts.about)),
        ("root.pem", String::clone(&parts.root)),
        ("root.key", String::clone(text)),
        ("intermediate.pem", format!("{}{certificate}", key.serialize_pem())),
    ]
}

async fn write_aged(site: &Site, left: Duration) -> Secret {
    let parts = aged(left);
    let parts: Vec<_> = parts.iter().map(|(name, text)| (*name, text.as_str())).collect();
    write(site, &parts).await
}

#[tokio::test]
async fn replicas_that_start_together_have_one_root() {
    let site = Site::new().await;
    let (a, b, c, d, e) =
        tokio::join!(site.start(), site.start(), site.start(), site.start(), site.start());
    let replicas = [a, b, c, d, e];
    let root = site.roots().await;
    let web = pod(&site.cluster, &site.namespace, "web-0", "web", None).await;
    let token = site.token(&web).await;
    let mut held = Vec::new();
    for replica in &replicas {
        let bundle = replica.bundle(&site).await;
        assert_eq!(bundle.roots, [root[0].to_vec()]);
        held.push(site.join(replica, &token).await.expect("joined"));
    }
    // What one issued, every other one renews.
    for (svid, replica) in held.iter().zip(replicas.iter().skip(1)) {
        replica.client().renew(svid, &new_key(), None).await.expect("renewed");
    }
    let secret = read(&site).await;
    assert_eq!(secret.type_.as_deref(), Some("rulecast.io/authority"));
    let own = "app.kubernetes.io/managed-by";
    assert_eq!(secret.metadata.labels.unwrap_or_default()[own], "rulecast");
    for replica in replicas {
        replica.stop().await;
    }
}

#[tokio::test]
async fn of_replicas_that_renew_one_wins_and_the_others_follow() {
    let site = Site::new().await;
    write_aged(&site, DAY * 180).await;
    let marked = json!({
        "metadata": {"labels": {"owner": "ops"}, "annotations": {"note": "kept"}},
        "data": {"more": "bW9yZQ=="},
    });
    let params = PatchParams::default();
    site.secrets().patch(SECRET, &params, &Patch::Merge(marked)).await.expect("marked");
    let before = read(&site).await;
    let mut replicas = Vec::new();
    for _ in 0..5 {
        replicas.push(secret(&site).await);
    }
    let [a, b, c, d, e] = &mut replicas[..] else { panic!("five") };
    let (a, b, c, d, e) = tokio::join!(a.open(), b.open(), c.open(), d.open(), e.open());
    let opened = [a, b, c, d, e].map(|opened| opened.expect("opens"));
    let after = read(&site).await;
    for authority in &opened {
        assert!(authority.is_same(&opened[0]), "all sign with one intermediate");
        assert!(authority.not_after() > SystemTime::now() + DAY * 300);
    }
    let data = |secret: &Secret, name: &str| secret.data.as_ref().expect("data")[name].clone();
    for kept in ["authority.json", "root.pem", "root.key", "more"] {
        assert_eq!(data(&after, kept), data(&before, kept), "{kept}");
    }
    assert_ne!(data(&after, "intermediate.pem"), data(&before, "intermediate.pem"));
    assert_eq!(after.metadata.labels, before.metadata.labels);
    assert_eq!(after.metadata.annotations, before.metadata.annotations);
    for (replica, held) in replicas.iter_mut().zip(&opened) {
        assert!(replica.look(held).await.expect("an answer").is_none(), "nothing is due");
    }
    assert_eq!(read(&site).await.metadata.resource_version, after.metadata.resource_version);
}

#[tokio::test]
async fn a_renewal_reaches_a_replica_that_runs() {
    let site = Site::new().await;
    let [mut first, mut second] = [secret(&site).await, secret(&site).await];
    let held = first.open().await.expect("made");
    assert!(second.open().await.expect("opens").is_same(&held));
    // Time passes: the same authority, with an intermediate past half.
    site.secrets().delete(SECRET, &DeleteParams::default()).await.expect("deleted");
    write_aged(&site, DAY * 100).await;
    let renewed = first.look(&held).await.expect("an answer").expect("another one");
    let followed = second.look(&held).await.expect("an answer").expect("another one");
    assert!(followed.is_same(&renewed) && !renewed.is_same(&held));
    // A change that is none of the authority's.
    let marked = Patch::Merge(json!({"metadata": {"labels": {"owner": "ops"}}}));
    site.secrets().patch(SECRET, &PatchParams::default(), &marked).await.expect("marked");
    assert!(first.look(&renewed).await.expect("an answer").is_none());
}

#[tokio::test]
async fn without_the_roots_key_the_old_intermediate_signs_on() {
    let site = Site::new().await;
    let parts = aged(DAY * 100);
    let parts: Vec<_> = parts.iter().map(|(name, text)| (*name, text.as_str())).collect();
    let without: Vec<_> = parts.iter().filter(|(name, _)| *name != "root.key").copied().collect();
    let before = write(&site, &without).await;
    let mut secret = secret(&site).await;
    let authority = secret.open().await.expect("opens");
    assert!(authority.is_due().expect("known"));
    assert!(secret.look(&authority).await.expect("an answer").is_none());
    assert_eq!(read(&site).await, before);
}

#[tokio::test]
async fn a_damaged_secret_is_refused_and_left_alone() {
    let other = Parts::generate(TRUST_DOMAIN).expect("made");
    let spoils: [(&str, Option<&str>); 6] = [
        ("authority.json", Some("{}")),
        ("root.pem", Some("no PEM")),
        ("root.pem", Some(&other.root)),
        ("intermediate.pem", Some("no PEM")),
        ("intermediate.pem", None),
        ("authority.json", None),
    ];
    for (name, spoiled) in spoils {
        let site = Site::new().await;
        let mut parts = aged(DAY * 300);
        parts.retain(|(part, _)| *part != name || spoiled.is_some());
        for (part, text) in &mut parts {
            if let Some(spoiled) = spoiled.filter(|_| *part == name) {
                spoiled.clone_into(text);
            }
        }
        let parts: Vec<_> = parts.iter().map(|(name, text)| (*name, text.as_str())).collect();
        let before = write(&site, &parts).await;
        let error = secret(&site).await.open().await.expect_err(name);
        assert_eq!(error.code(), Code::AuthorityInvalid, "{error}");
        let place = format!("Secret {}/{SECRET}: ", site.namespace.name());
        assert!(error.message().starts_with(&place), "{error}");
        assert_eq!(read(&site).await, before, "{name}");
        // The process says so and ends, whoever starts it again.
        let mut ca = site.start().await;
        let ended = (&mut ca.task).await.expect("no panic").expect_err(name);
        assert_eq!(ended.code(), Code::AuthorityInvalid);
    }
}

#[tokio::test]
async fn another_trust_domain_is_refused() {
    let site = Site::new().await;
    secret(&site).await.open().await.expect("made");
    let before = read(&site).await;
    let error = secret_of(&site, "other.test").await.open().await.expect_err("another");
    assert_eq!(error.code(), Code::ConfigInvalid, "{error}");
    assert!(error.message().contains(TRUST_DOMAIN), "{error}");
    assert_eq!(read(&site).await, before);
}

#[tokio::test]
async fn a_folder_becomes_a_secret() {
    let site = Site::new().await;
    let parent = tempfile::tempdir().expect("a folder");
    let dir = parent.path().join("ca");
    rulecast_ca::init(&dir, TRUST_DOMAIN).expect("made");
    let mut arguments = vec!["create".to_owned(), "secret".into(), "generic".into()];
    arguments.extend([SECRET.to_owned(), "-n".into(), site.namespace.name().into()]);
    for name in ["authority.json", "root.pem", "root.key", "intermediate.pem"] {
        arguments.push(format!("--from-file={}", dir.join(name).display()));
    }
    let made = site.cluster.kubectl(&arguments).await.expect("kubectl");
    made.success().expect("a Secret of the files");
    let opened = secret(&site).await.open().await.expect("opens");
    assert!(opened.is_same(&Authority::open(&dir).expect("opens")));
}

#[tokio::test]
async fn a_secret_that_is_gone_ends_nothing_and_is_not_made_anew() {
    let site = Site::new().await;
    let ca = site.start().await;
    let web = pod(&site.cluster, &site.namespace, "web-0", "web", None).await;
    let token = site.token(&web).await;
    let svid = site.join(&ca, &token).await.expect("joined");
    let mut secret = secret(&site).await;
    let held = secret.open().await.expect("opens");
    let root = held.bundle().roots()[0].clone();

    site.secrets().delete(SECRET, &DeleteParams::default()).await.expect("deleted");
    let error = secret.look(&held).await.expect_err("it is gone");
    assert_eq!(error.code(), Code::AuthorityInvalid, "{error}");
    assert!(site.secrets().get_opt(SECRET).await.expect("an answer").is_none());
    let next = ca.client().renew(&svid, &new_key(), None).await.expect("it issues on");
    assert_eq!(next.bundle.roots(), [root]);

    // Put in its place: whoever runs takes what is there.
    write_aged(&site, DAY * 300).await;
    let other = secret.look(&held).await.expect("an answer").expect("another one");
    assert_ne!(other.bundle().roots(), held.bundle().roots());
}

#[tokio::test]
async fn without_its_secret_no_new_root_is_made_beside_the_one_that_is_trusted() {
    let site = Site::new().await;
    let maps: Api<ConfigMap> = Api::namespaced(site.cluster.client(), &site.namespace);
    let mut map = ConfigMap::default();
    map.metadata.name = Some("rulecast-trust-bundle".into());
    map.data = Some([("ca.crt".into(), "roots".into())].into());
    maps.create(&PostParams::default(), &map).await.expect("made");

    let error = secret(&site).await.open().await.expect_err("refused");
    assert_eq!(error.code(), Code::AuthorityInvalid, "{error}");
    assert!(error.to_string().contains("delete the ConfigMap to begin anew"), "{error}");
    assert!(site.secrets().get_opt(SECRET).await.expect("read").is_none(), "none was made");

    maps.delete("rulecast-trust-bundle", &DeleteParams::default()).await.expect("deleted");
    secret(&site).await.open().await.expect("made now");
}

#[tokio::test]
async fn without_its_rights_it_waits_for_them() {
    let site = Site::new().await;
    let namespace = site.namespace.name();
    let roles = ["role/rulecast-ca", "-n", namespace, "-o", "json"];
    let get: Vec<&str> = ["get"].into_iter().chain(roles).collect();
    let role = site.cluster.kubectl(&get).await.expect("kubectl").success().expect("a role");
    let delete = ["delete", "role/rulecast-ca", "-n", namespace];
    site.cluster.kubectl(&delete).await.expect("kubectl").success().expect("deleted");
    let ca = site.start().await;
    let page = until("the reason", async || {
        ca.page("/readyz").await.filter(|page| page.contains("forbidden"))
    })
    .await;
    assert!(page.starts_with("HTTP/1.1 503"), "{page}");
    assert!(page.contains("opening the authority: ") && page.contains(SECRET), "{page}");
    assert!(site.secrets().get_opt(SECRET).await.expect("an answer").is_none());

    let made = site.cluster.kubectl_with(&["apply", "-f", "-"], &role).await;
    made.expect("kubectl").success().expect("made");
    ca.ready().await;
    assert!(site.secrets().get_opt(SECRET).await.expect("an answer").is_some());
    ca.stop().await;
}
