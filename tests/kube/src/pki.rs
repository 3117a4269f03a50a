//! Keys and certificates of a server.

use std::{
    fs::{self, File},
    io::Read,
    path::Path,
};

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PKCS_RSA_SHA256, RsaKeySize, SanType,
};

/// Names under which the server's certificate is good, besides 127.0.0.1.
const NAMES: [&str; 3] = ["localhost", "kubernetes.default.svc", "kubernetes"];

/// Writes a serving certificate of an authority that is made for it and forgotten, as
/// `serving.crt` and `serving.key`. Returns the authority's certificate, PEM. `generation`
/// tells authorities of one server apart by name.
pub(crate) fn serving_certificate(dir: &Path, generation: u32) -> Result<String> {
    let mut ca = named(&format!("test-kube-ca-{generation}"));
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    let ca_key = KeyPair::generate()?;
    let root = ca.self_signed(&ca_key)?.pem();
    let issuer = Issuer::new(ca, ca_key);

    let mut serving = named("kube-apiserver");
    serving.subject_alt_names.push(SanType::IpAddress([127, 0, 0, 1].into()));
    for name in NAMES {
        serving.subject_alt_names.push(SanType::DnsName(name.try_into()?));
    }
    serving.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    serving.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let key = KeyPair::generate()?;
    let certificate = serving.signed_by(&key, &issuer)?.pem();
    write(dir, "serving.crt", &certificate)?;
    write(dir, "serving.key", &key.serialize_pem())?;
    Ok(root)
}

/// Writes the key pair that signs service-account tokens, as `sa.key` and `sa.pub`. RSA, as
/// clusters have it.
pub(crate) fn service_account_keys(dir: &Path) -> Result<()> {
    let key = KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048)?;
    write(dir, "sa.key", &key.serialize_pem())?;
    write(dir, "sa.pub", &key.public_key_pem())
}

fn named(common_name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    params
}

fn write(dir: &Path, name: &str, text: &str) -> Result<()> {
    fs::write(dir.join(name), text).with_context(|| format!("writing {name}"))
}

/// A secret that nobody guesses, as text.
pub(crate) fn secret() -> Result<String> {
    Ok(hex::encode(random::<16>()?))
}

/// Chance.
pub(crate) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}
