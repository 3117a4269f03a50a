//! Certificate signing requests, read strictly.
//!
//! A request proves that its sender holds a key, and nothing else: names come
//! from the attested caller. What a request asks for beyond that is refused
//! instead of ignored, so that nobody believes to have got it. The subject
//! alone is ignored: common tools cannot leave it out.

use rulecast_api::{Code, SpiffeId};
use rustls_pki_types::SignatureVerificationAlgorithm;
use sha2::{Digest as _, Sha256};
use webpki::aws_lc_rs as algorithms;
use x509_parser::{
    certification_request::X509CertificationRequest,
    cri_attributes::ParsedCriAttribute,
    extensions::{GeneralName, ParsedExtension, X509Extension},
    oid_registry::{
        OID_EC_P256, OID_KEY_TYPE_EC_PUBLIC_KEY, OID_NIST_EC_P384, OID_PKCS1_RSAENCRYPTION,
        OID_PKCS1_SHA256WITHRSA, OID_PKCS1_SHA384WITHRSA, OID_PKCS1_SHA512WITHRSA,
        OID_SIG_ECDSA_WITH_SHA256, OID_SIG_ECDSA_WITH_SHA384, OID_SIG_ED25519,
    },
    prelude::FromDer,
    public_key::PublicKey,
    x509::SubjectPublicKeyInfo,
};

use crate::CaError;

/// Largest request in bytes; one with an RSA key of 8192 bits has about 2.3 KiB.
pub const MAX_CSR: usize = 8 * 1024;

/// Bits of an RSA modulus that are accepted.
const RSA_BITS: std::ops::RangeInclusive<usize> = 2048..=8192;

/// A request whose signature, key and wishes were found good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedCsr {
    /// SubjectPublicKeyInfo, DER.
    pub public_key: Vec<u8>,
}

impl CheckedCsr {
    /// SHA-256 of the public key, lower-case hexadecimal.
    pub fn key_hash(&self) -> String {
        hex::encode(Sha256::digest(&self.public_key))
    }
}

/// Checks a PKCS#10 request (DER) of `caller`, who is attested already.
///
/// Refused with [`Code::CsrInvalid`]: malformed, too large, wrong signature,
/// unknown wishes. With [`Code::CsrKey`]: another key than P-256, P-384,
/// Ed25519 or RSA of 2048 to 8192 bits. With [`Code::CsrAuthority`]: wants to
/// sign certificates. With [`Code::CsrIdentity`]: any name but the caller's.
pub fn check(der: &[u8], caller: &SpiffeId) -> Result<CheckedCsr, CaError> {
    if der.is_empty() || der.len() > MAX_CSR {
        return Err(invalid(format!("it has {} bytes; 1 to {MAX_CSR} are allowed", der.len())));
    }
    let (rest, csr) = X509CertificationRequest::from_der(der)
        .map_err(|e| invalid(format!("it is no PKCS#10 in DER ({e})")))?;
    if !rest.is_empty() {
        return Err(invalid("bytes follow it"));
    }
    let info = &csr.certification_request_info;
    // The key before the signature: the verifier would call a weak key a wrong signature.
    let algorithm = algorithm(&csr)?;
    algorithm
        .verify_signature(
            &info.subject_pki.subject_public_key.data,
            info.raw,
            &csr.signature_value.data,
        )
        .map_err(|_| invalid("its signature is not by the key that it names"))?;
    let mut extensions = None;
    for attribute in info.iter_attributes() {
        match attribute.parsed_attribute() {
            ParsedCriAttribute::ExtensionRequest(request) if extensions.is_none() => {
                extensions = Some(&request.extensions);
            }
            ParsedCriAttribute::ExtensionRequest(_) => {
                return Err(invalid("it requests extensions twice"));
            }
            _ => return Err(invalid(format!("it has an attribute {}", attribute.oid))),
        }
    }
    let mut seen: Vec<&X509Extension<'_>> = Vec::new();
    for extension in extensions.into_iter().flatten() {
        if seen.iter().any(|e| e.oid == extension.oid) {
            return Err(invalid(format!("it has the extension {} twice", extension.oid)));
        }
        check_extension(extension, caller)?;
        seen.push(extension);
    }
    Ok(CheckedCsr { public_key: info.subject_pki.raw.to_vec() })
}

fn check_extension(extension: &X509Extension<'_>, caller: &SpiffeId) -> Result<(), CaError> {
    match extension.parsed_extension() {
        ParsedExtension::BasicConstraints(constraints) if constraints.ca => Err(authority()),
        ParsedExtension::KeyUsage(usage) if usage.key_cert_sign() || usage.crl_sign() => {
            Err(authority())
        }
        ParsedExtension::SubjectAlternativeName(names) => {
            let wanted = caller.to_string();
            match names.general_names.as_slice() {
                [GeneralName::URI(uri)] if *uri == wanted => Ok(()),
                others => Err(CaError::new(
                    Code::CsrIdentity,
                    format!(
                        "the request asks for {}, but the caller is {wanted}; ask for this or for no name",
                        shown(others)
                    ),
                )),
            }
        }
        // Both are given anyway, within what a leaf may have.
        ParsedExtension::BasicConstraints(_)
        | ParsedExtension::KeyUsage(_)
        | ParsedExtension::ExtendedKeyUsage(_)
        | ParsedExtension::SubjectKeyIdentifier(_) => Ok(()),
        _ => Err(invalid(format!("it asks for the extension {}", extension.oid))),
    }
}

/// Names for a message: the first three, none longer than a line.
fn shown(names: &[GeneralName<'_>]) -> String {
    let text = |name: &GeneralName<'_>| name.to_string().chars().take(120).collect::<String>();
    match names {
        [] => "an empty list of names".into(),
        _ => names.iter().take(3).map(text).collect::<Vec<_>>().join(", "),
    }
}

/// Key kinds with their signatures.
fn algorithm(
    csr: &X509CertificationRequest<'_>,
) -> Result<&'static dyn SignatureVerificationAlgorithm, CaError> {
    let key = &csr.certification_request_info.subject_pki;
    let signature = &csr.signature_algorithm.algorithm;
    let by = |pairs: &[_]| {
        pairs
            .iter()
            .find(|(oid, _)| oid == signature)
            .map(|(_, algorithm): &(_, &'static dyn SignatureVerificationAlgorithm)| *algorithm)
            .ok_or_else(|| {
                invalid(format!("its signature algorithm {signature} does not suit its key"))
            })
    };
    match key_kind(key)? {
        KeyKind::P256 => by(&[
            (OID_SIG_ECDSA_WITH_SHA256, algorithms::ECDSA_P256_SHA256),
            (OID_SIG_ECDSA_WITH_SHA384, algorithms::ECDSA_P256_SHA384),
        ]),
        KeyKind::P384 => by(&[
            (OID_SIG_ECDSA_WITH_SHA256, algorithms::ECDSA_P384_SHA256),
            (OID_SIG_ECDSA_WITH_SHA384, algorithms::ECDSA_P384_SHA384),
        ]),
        KeyKind::Ed25519 => by(&[(OID_SIG_ED25519, algorithms::ED25519)]),
        KeyKind::Rsa => by(&[
            (OID_PKCS1_SHA256WITHRSA, algorithms::RSA_PKCS1_2048_8192_SHA256),
            (OID_PKCS1_SHA384WITHRSA, algorithms::RSA_PKCS1_2048_8192_SHA384),
            (OID_PKCS1_SHA512WITHRSA, algorithms::RSA_PKCS1_2048_8192_SHA512),
        ]),
    }
}

enum KeyKind {
    P256,
    P384,
    Ed25519,
    Rsa,
}

fn key_kind(key: &SubjectPublicKeyInfo<'_>) -> Result<KeyKind, CaError> {
    let weak = |what: String| {
        CaError::new(
            Code::CsrKey,
            format!(
                "the request has {what}; use ECDSA P-256 or P-384, Ed25519, or RSA of 2048 to 8192 bits"
            ),
        )
    };
    let oid = &key.algorithm.algorithm;
    if *oid == OID_KEY_TYPE_EC_PUBLIC_KEY {
        let curve = key.algorithm.parameters.as_ref().and_then(|p| p.as_oid().ok());
        return match curve {
            Some(curve) if curve == OID_EC_P256 => Ok(KeyKind::P256),
            Some(curve) if curve == OID_NIST_EC_P384 => Ok(KeyKind::P384),
            _ => Err(weak("a key on another curve".into())),
        };
    }
    if *oid == OID_SIG_ED25519 {
        return Ok(KeyKind::Ed25519);
    }
    if *oid != OID_PKCS1_RSAENCRYPTION {
        return Err(weak(format!("a key of the unsupported kind {oid}")));
    }
    match key.parsed() {
        Ok(PublicKey::RSA(rsa)) if RSA_BITS.contains(&rsa.key_size()) => Ok(KeyKind::Rsa),
        Ok(PublicKey::RSA(rsa)) => Err(weak(format!("an RSA key of {} bits", rsa.key_size()))),
        _ => Err(invalid("its RSA key is malformed")),
    }
}

fn invalid(why: impl std::fmt::Display) -> CaError {
    CaError::new(
        Code::CsrInvalid,
        format!(
            "the certificate signing request cannot be used: {why}; send PKCS#10 in DER, signed by its own key"
        ),
    )
}

fn authority() -> CaError {
    CaError::new(
        Code::CsrAuthority,
        "the request asks for a certificate that may sign others; workloads get leaf certificates only",
    )
}

#[cfg(test)]
mod tests;
