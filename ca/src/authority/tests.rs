use super::*;
use rulecast_identity::PeerIdentity;

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
fn an_old_intermediate_is_replaced() {
    let (_parent, dir) = new_authority();
    let authority = Authority::open(&dir).expect("opens");
    let before = authority.intermediate.clone();
    let key = PrivateKey::load(&dir.join(ROOT_KEY)).expect("the root's key");
    renew_intermediate(&dir, &authority.bundle, &key).expect("renewed");
    let after = Authority::open(&dir).expect("opens");
    assert_ne!(before, after.intermediate);
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
