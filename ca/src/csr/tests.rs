use super::*;
use proptest::prelude::*;
use rcgen::{
    BasicConstraints, CertificateParams, CustomExtension, DistinguishedName, IsCa, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P384_SHA384, SanType,
};
use rulecast_identity::PrivateKey;

fn caller() -> SpiffeId {
    "spiffe://td/ns/shop/app/web".parse().expect("an identity")
}

fn request(change: impl FnOnce(&mut CertificateParams)) -> Vec<u8> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    change(&mut params);
    let key = PrivateKey::generate().expect("key");
    params.serialize_request(key.pair()).expect("signs").der().to_vec()
}

fn uri(text: &str) -> SanType {
    SanType::URI(text.try_into().expect("ASCII"))
}

fn refused(der: &[u8]) -> Code {
    check(der, &caller()).expect_err("refused").code()
}

#[test]
fn the_callers_name_or_none_is_fine() {
    let key = PrivateKey::generate().expect("key");
    for name in [None, Some(&caller())] {
        let csr = key.csr(name).expect("signs");
        assert_eq!(check(&csr, &caller()).expect("good").public_key, key.public_key());
    }
}

#[test]
fn other_names_are_refused() {
    for names in [
        vec![uri("spiffe://td/ns/shop/app/other")],
        vec![uri("spiffe://td/ns/shop/app/web"), uri("spiffe://td/ns/shop/app/other")],
        vec![SanType::DnsName("web.shop".try_into().expect("ASCII"))],
        vec![SanType::IpAddress([127, 0, 0, 1].into())],
    ] {
        let csr = request(|p| p.subject_alt_names = names.clone());
        assert_eq!(refused(&csr), Code::CsrIdentity, "{names:?}");
    }
}

#[test]
fn authorities_are_refused() {
    // rcgen gives a request no CA constraint, so it is written by hand: SEQUENCE { TRUE }.
    let constraint = CustomExtension::from_oid_content(&[2, 5, 29, 19], vec![0x30, 3, 1, 1, 0xff]);
    assert_eq!(refused(&request(|p| p.custom_extensions = vec![constraint])), Code::CsrAuthority);
    let usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyCertSign];
    assert_eq!(refused(&request(|p| p.key_usages = usages)), Code::CsrAuthority);
    let ca = IsCa::Ca(BasicConstraints::Unconstrained);
    assert_eq!(refused(&request(|p| p.is_ca = ca)), Code::CsrAuthority);
}

#[test]
fn unknown_wishes_are_refused() {
    let other = CustomExtension::from_oid_content(&[1, 2, 3], vec![5, 0]);
    assert_eq!(refused(&request(|p| p.custom_extensions = vec![other])), Code::CsrInvalid);
    let facts = CustomExtension::from_oid_content(rulecast_identity::facts::OID, vec![12, 0]);
    assert_eq!(refused(&request(|p| p.custom_extensions = vec![facts])), Code::CsrInvalid);
}

#[test]
fn keys_are_strong() {
    assert_eq!(refused(include_bytes!("fixtures/rsa1024.der")), Code::CsrKey);
    assert_eq!(refused(include_bytes!("fixtures/p521.der")), Code::CsrKey);
    check(include_bytes!("fixtures/rsa2048.der"), &caller()).expect("RSA");
    check(include_bytes!("fixtures/ed25519.der"), &caller()).expect("Ed25519");
    let key = KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384).expect("key");
    let csr = CertificateParams::default().serialize_request(&key).expect("signs");
    check(csr.der(), &caller()).expect("P-384");
}

#[test]
fn malformed_and_wrongly_signed_are_refused() {
    let good = PrivateKey::generate().expect("key").csr(None).expect("signs");
    let mut signed_wrong = good.clone();
    *signed_wrong.last_mut().expect("not empty") ^= 1;
    let longer = [&good[..], &[0]].concat();
    for der in [&[][..], &good[..good.len() - 1], &longer, &signed_wrong, &[0x30; MAX_CSR + 1]] {
        assert_eq!(refused(der), Code::CsrInvalid);
    }
}

proptest! {
    /// What is accepted names the key that signed, whatever bytes were changed.
    #[test]
    fn mutations_never_panic_nor_change_the_key(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in proptest::option::of(any::<prop::sample::Index>()),
    ) {
        let key = PrivateKey::generate().expect("key");
        let mut der = key.csr(Some(&caller())).expect("signs");
        for (at, byte) in changes {
            let at = at.index(der.len());
            der[at] = byte;
        }
        if let Some(cut) = cut {
            der.truncate(cut.index(der.len()));
        }
        if let Ok(checked) = check(&der, &caller()) {
            prop_assert_eq!(checked.public_key, key.public_key());
        }
    }
}
