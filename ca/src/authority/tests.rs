use std::{fs, os::unix::fs::PermissionsExt as _};

use super::{
    folder::init,
    parts::{ABOUT, INTERMEDIATE, ROOT, ROOT_KEY, Where},
    *,
};
use rulecast_identity::PeerIdentity;

const PLACE: Where<'_> = Where { prefix: "here/", remedy: "mend it" };

/// As `parts`, with an intermediate of which `left` is left of a year.
fn aged(parts: &Parts, left: Duration) -> Parts {
    let authority = parts.open(&PLACE).expect("good");
    let root_key = PrivateKey::from_pem(parts.root_key.as_ref().expect("a key")).expect("a key");
    let root = authority.bundle.roots()[0].clone();
    let issuer = Issuer::from_ca_cert_der(&root, root_key.pair()).expect("an issuer");
    let mut params = ca_params("old", Some(0), 1).expect("parameters");
    params.not_after = seconds(SystemTime::now() + left);
    params.not_before = seconds(SystemTime::now() + left - DAY * 365);
    let key = PrivateKey::generate().expect("key");
    let certificate = params.signed_by(key.pair(), &issuer).expect("signed");
    let text = format!("{}{}", *key.to_pem(), certificate.pem());
    Parts { intermediate: text.into(), ..parts.clone() }
}

fn new_authority() -> (tempfile::TempDir, std::path::PathBuf) {
    let parent = tempfile::tempdir().expect("folder");
    let dir = parent.path().join("ca");
    init(&dir, "td.example").expect("made");
    (parent, dir)
}

#[test]
fn made_for_its_owner_alone_and_opened_again() {
    let (_parent, dir) = new_authority();
    let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
    assert_eq!(mode(&dir), 0o700);
    for name in [ABOUT, ROOT, ROOT_KEY, INTERMEDIATE] {
        assert_eq!(mode(&dir.join(name)), 0o600, "{name}");
    }
    let authority = Authority::open(&dir).expect("opens");
    assert_eq!(authority.trust_domain(), "td.example");
    let error = init(&dir, "other").expect_err("is there");
    assert_eq!(error.code(), Code::AuthorityInvalid);
    assert_eq!(Authority::open(&dir).expect("untouched").trust_domain(), "td.example");
}

#[test]
fn damaged_or_open_folders_are_refused() {
    for name in [ABOUT, ROOT, INTERMEDIATE] {
        let (_parent, dir) = new_authority();
        fs::write(dir.join(name), "damaged").expect("written");
        let error = Authority::open(&dir).expect_err(name);
        assert_eq!(error.code(), Code::AuthorityInvalid, "{error}");
        fs::remove_file(dir.join(name)).expect("removed");
        assert_eq!(Authority::open(&dir).expect_err(name).code(), Code::AuthorityInvalid);
    }
    let (_parent, dir) = new_authority();
    let (_other_parent, other) = new_authority();
    fs::copy(other.join(ROOT), dir.join(ROOT)).expect("copied");
    let error = Authority::open(&dir).expect_err("another root");
    assert_eq!(error.code(), Code::AuthorityInvalid, "{error}");
    for name in [INTERMEDIATE, ROOT_KEY] {
        let (_parent, dir) = new_authority();
        fs::set_permissions(dir.join(name), fs::Permissions::from_mode(0o644)).expect("chmod");
        assert_eq!(Authority::open(&dir).expect_err(name).code(), Code::KeyPermissions);
    }
    let (_parent, dir) = new_authority();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).expect("chmod");
    assert_eq!(Authority::open(&dir).expect_err("wide").code(), Code::KeyPermissions);
    let missing = Authority::open(&dir.join("missing")).expect_err("missing");
    assert_eq!(missing.code(), Code::AuthorityInvalid);
}

#[test]
fn leaves_have_name_facts_and_a_bounded_life() {
    let (_parent, dir) = new_authority();
    let authority = Authority::open(&dir).expect("opens");
    let spiffe: SpiffeId = "spiffe://td.example/ns/shop/app/web".parse().expect("an identity");
    let attested = AttestedFacts {
        namespace: "shop".into(),
        application: "web".into(),
        method: "join-token".into(),
        token_id: Some("0011".into()),
        pod: None,
    };
    let key = PrivateKey::generate().expect("key").public_key();
    let before = SystemTime::now();
    let issued = authority
        .issue(&key, &spiffe, &attested, Duration::from_secs(365 * 24 * 3600))
        .expect("issued");
    let life = issued.not_after.duration_since(before).expect("in the future");
    assert!(life <= MAX_LEAF + Duration::from_secs(5), "{life:?}");
    assert!(issued.not_before < before && issued.renew_at < issued.not_after);
    let peer = PeerIdentity::from_der(&issued.chain[0]).expect("a workload's");
    assert_eq!((peer.spiffe, peer.facts), (spiffe.clone(), Some(attested.clone())));
    let (_, leaf) = X509Certificate::from_der(&issued.chain[0]).expect("DER");
    assert!(leaf.subject().as_raw().len() <= 2, "the subject is empty");
    assert!(leaf.subject_alternative_name().expect("well-formed").expect("there").critical);
    let usage = leaf.extended_key_usage().expect("well-formed").expect("there").value;
    assert!(usage.client_auth && usage.server_auth && !usage.any);
    let (_, issuer) = X509Certificate::from_der(&issued.chain[1]).expect("DER");
    let path = issuer.basic_constraints().expect("well-formed").expect("there").value;
    assert_eq!((path.ca, path.path_len_constraint), (true, Some(0)));
    let foreign = "spiffe://other/ns/shop/app/web".parse().expect("an identity");
    let error = authority.issue(&key, &foreign, &attested, MAX_LEAF).expect_err("foreign");
    assert_eq!(error.code(), Code::PeerTrustDomain);
}

#[test]
fn no_leaf_outlives_its_issuer() {
    let (_parent, dir) = new_authority();
    let mut authority = Authority::open(&dir).expect("opens");
    authority.not_after = whole_seconds(SystemTime::now()) + Duration::from_secs(600);
    let svid = authority.own_svid(MAX_LEAF).expect("issued");
    assert_eq!(svid.not_after, authority.not_after);
    authority.not_after = SystemTime::now() - Duration::from_secs(1);
    assert_eq!(authority.own_svid(MAX_LEAF).expect_err("over").code(), Code::AuthorityInvalid);
}

#[test]
fn an_intermediate_past_half_of_its_time_is_replaced() {
    let parts = Parts::generate("td.example").expect("made");
    assert!(parts.renewed(&PLACE).expect("good").is_none());
    assert!(aged(&parts, DAY * 190).renewed(&PLACE).expect("good").is_none());
    let old = aged(&parts, DAY * 180);
    let renewed = old.renewed(&PLACE).expect("good").expect("renewed");
    let (before, after) = (old.open(&PLACE).expect("good"), renewed.open(&PLACE).expect("good"));
    assert_ne!(before.intermediate, after.intermediate);
    assert_eq!(before.bundle, after.bundle);
    assert!(!before.is_same(&after) && after.is_same(&renewed.open(&PLACE).expect("good")));
    let without = Parts { root_key: None, ..old.clone() };
    let error = without.renewed(&PLACE).expect_err("there is no key");
    assert!(error.message().starts_with("here/root.key: "), "{error}");
    without.open(&PLACE).expect("the old one signs on");

    let (_parent, dir) = new_authority();
    for (name, text) in [(ABOUT, &old.about), (ROOT, &old.root), (INTERMEDIATE, &old.intermediate)]
    {
        fs::write(dir.join(name), &**text).expect("written");
    }
    fs::write(dir.join(ROOT_KEY), &**old.root_key.as_ref().expect("a key")).expect("written");
    let opened = Authority::open(&dir).expect("opens");
    assert_ne!(opened.intermediate, before.intermediate);
    assert!(opened.is_same(&Authority::open(&dir).expect("opens again")));
}

#[test]
fn a_servers_certificate_is_for_its_names_and_nobodys_identity() {
    let (_parent, dir) = new_authority();
    let authority = Authority::open(&dir).expect("opens");
    let hosts = ["rulecast-ca.rulecast-system.svc".to_owned(), "127.0.0.1".to_owned()];
    let issued = authority.webhook_certificate(&hosts, MAX_LEAF).expect("issued");
    let roots = pem::parse(authority.roots_pem()).expect("PEM");
    assert!(roots.headers().iter().next().is_none(), "plain PEM");
    let root = CertificateDer::from(roots.into_contents());
    let anchor = webpki::anchor_from_trusted_cert(&root).expect("a root");
    let leaf = webpki::EndEntityCert::try_from(&issued.chain[0]).expect("a leaf");
    let verify = |usage| {
        leaf.verify_for_usage(
            webpki::ALL_VERIFICATION_ALGS,
            std::slice::from_ref(&anchor),
            &issued.chain[1..],
            rustls_pki_types::UnixTime::now(),
            usage,
            None,
            None,
        )
        .map(|_| ())
    };
    verify(webpki::KeyUsage::server_auth()).expect("a server's");
    verify(webpki::KeyUsage::client_auth()).expect_err("no client's");
    for host in &hosts {
        let name = host.as_str().try_into().expect("a name");
        leaf.verify_is_valid_for_subject_name(&name).expect(host);
    }
    let other = "rulecast-ca.other.svc".try_into().expect("a name");
    leaf.verify_is_valid_for_subject_name(&other).expect_err("another host");
    PeerIdentity::from_der(&issued.chain[0]).expect_err("no identity of ours");
    for hosts in [&[][..], &[String::new()], &["no host\n".to_owned()]] {
        let error = authority.webhook_certificate(hosts, MAX_LEAF).expect_err("refused");
        assert_eq!(error.code(), Code::ConfigInvalid);
    }
}

#[test]
fn services_of_its_own_process_need_no_credential_and_no_others_get_it() {
    let (_parent, dir) = new_authority();
    let authority = Authority::open(&dir).expect("opens");
    let dds = "spiffe://td.example/ns/rulecast-system/app/rulecast-dds".parse().expect("a name");
    let svid = authority.issue_service(&dds, MAX_LEAF).expect("issued");
    assert_eq!(svid.spiffe, dds);
    assert_eq!(svid.chain.last(), authority.bundle().roots().last(), "the root is sent along");
    for other in [
        "spiffe://td.example/ns/shop/app/web",
        "spiffe://other/ns/rulecast-system/app/rulecast-dds",
    ] {
        let other = other.parse().expect("a name");
        let error = authority.issue_service(&other, MAX_LEAF).expect_err("not a service");
        assert_eq!(error.code(), Code::OtherApplication);
    }
}

#[test]
fn only_the_two_servers_have_dns_names() {
    let site = tempfile::tempdir().expect("folder");
    let dir = site.path().join("ca");
    init(&dir, "td.example").expect("made");
    let names = ServerNames::new(
        &["ca.example".into(), "192.0.2.1".into()],
        &["rulecast-dds.rulecast-system.svc".into()],
    );
    let authority = Authority::open(&dir).expect("opens").with_names(names.expect("names"));
    let of = |spiffe: &str| {
        let spiffe: SpiffeId = spiffe.parse().expect("a name");
        let facts = AttestedFacts {
            namespace: spiffe.namespace.clone(),
            application: spiffe.workload.name().into(),
            method: "test".into(),
            token_id: None,
            pod: None,
        };
        let key = PrivateKey::generate().expect("key").public_key();
        let issued = authority.issue(&key, &spiffe, &facts, MAX_LEAF).expect("issued");
        let (_, leaf) = X509Certificate::from_der(&issued.chain[0]).expect("DER");
        let names = leaf.subject_alternative_name().expect("well formed").expect("has names");
        let names: Vec<_> = names.value.general_names.iter().map(ToString::to_string).collect();
        names[1..].join(" ")
    };
    let own = of("spiffe://td.example/ns/rulecast-system/app/rulecast-ca");
    assert!(own.contains("ca.example") && own.split(' ').count() == 2, "{own}");
    for plane in ["app", "sa"] {
        let plane = of(&format!("spiffe://td.example/ns/rulecast-system/{plane}/rulecast-dds"));
        assert!(plane.contains("rulecast-dds.rulecast-system.svc"), "{plane}");
    }
    for other in ["ns/shop/app/rulecast-dds", "ns/rulecast-system/app/web", "ns/shop/sa/web"] {
        assert_eq!(of(&format!("spiffe://td.example/{other}")), "", "{other}");
    }
    for bad in ["", "a b", "*.example", "http://a"] {
        let error = ServerNames::new(&[bad.into()], &[]).expect_err(bad);
        assert_eq!(error.code(), Code::ConfigInvalid);
    }
}
