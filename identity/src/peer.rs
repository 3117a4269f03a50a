//! Who a certificate is of.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rulecast_api::{Code, SpiffeId};
use sha2::{Digest as _, Sha256};
use x509_parser::prelude::{FromDer, GeneralName, ParsedExtension, X509Certificate};

use crate::{AttestedFacts, IdentityError, facts};

/// Largest certificate that is read, in bytes.
pub(crate) const MAX_CERTIFICATE: usize = 16 * 1024;

/// What a certificate says of its holder. Reading it proves nothing: the TLS
/// verifiers of this crate check chain and possession before anybody meets one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerIdentity {
    /// Its one URI SAN.
    pub spiffe: SpiffeId,
    /// What its attestor found out.
    pub facts: Option<AttestedFacts>,
    /// Valid from.
    pub not_before: SystemTime,
    /// Valid until.
    pub not_after: SystemTime,
    /// SubjectPublicKeyInfo of its key, DER.
    pub public_key: Vec<u8>,
    /// Serial number, lower-case hexadecimal.
    pub serial: String,
    /// SHA-256 of the certificate, lower-case hexadecimal.
    pub fingerprint: String,
}

impl PeerIdentity {
    /// Reads a leaf certificate. It must have exactly one URI SAN, a SPIFFE ID of
    /// the shapes that Rulecast issues, and must not be a CA's.
    pub fn from_der(der: &[u8]) -> Result<Self, IdentityError> {
        let bad = |why: String| {
            IdentityError::new(
                Code::PeerIdentity,
                format!(
                    "the certificate names no workload of ours: {why}; use one that rulecast-ca issued"
                ),
            )
        };
        if der.len() > MAX_CERTIFICATE {
            return Err(bad(format!("it has {} bytes", der.len())));
        }
        let (rest, certificate) =
            X509Certificate::from_der(der).map_err(|e| bad(format!("it is malformed ({e})")))?;
        if !rest.is_empty() {
            return Err(bad("bytes follow it".into()));
        }
        if certificate.is_ca() {
            return Err(bad("it is of a certificate authority".into()));
        }
        let names = certificate
            .subject_alternative_name()
            .map_err(|e| bad(format!("its names are malformed ({e})")))?;
        let mut uris = names.iter().flat_map(|names| &names.value.general_names).filter_map(
            |name| match name {
                GeneralName::URI(uri) => Some(*uri),
                _ => None,
            },
        );
        let (Some(uri), None) = (uris.next(), uris.next()) else {
            return Err(bad("it must have exactly one URI SAN".into()));
        };
        let spiffe =
            uri.parse().map_err(|e: rulecast_api::spiffe::SpiffeError| bad(e.to_string()))?;
        let mut attested = None;
        for extension in certificate.extensions() {
            let ours = extension.oid.iter().is_some_and(|oid| oid.eq(facts::OID.iter().copied()));
            if ours
                && matches!(
                    extension.parsed_extension(),
                    ParsedExtension::UnsupportedExtension { .. }
                )
            {
                let read = AttestedFacts::decode(extension.value)?;
                attested = Some(read);
            }
        }
        let validity = certificate.validity();
        Ok(Self {
            spiffe,
            facts: attested,
            not_before: system_time(validity.not_before.timestamp()),
            not_after: system_time(validity.not_after.timestamp()),
            public_key: certificate.public_key().raw.to_vec(),
            serial: hex::encode(certificate.raw_serial()),
            fingerprint: fingerprint(der),
        })
    }
}

/// SHA-256 of a certificate, lower-case hexadecimal.
pub fn fingerprint(der: &[u8]) -> String {
    hex::encode(Sha256::digest(der))
}

/// Unix seconds as a time; before 1970 and out of range become 1970.
pub(crate) fn system_time(seconds: i64) -> SystemTime {
    u64::try_from(seconds)
        .ok()
        .and_then(|s| UNIX_EPOCH.checked_add(Duration::from_secs(s)))
        .unwrap_or(UNIX_EPOCH)
}

/// A time as Unix seconds; before 1970 becomes 1970.
pub(crate) fn unix(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::PrivateKey;
    use proptest::prelude::*;
    use rcgen::{CertificateParams, CustomExtension, DistinguishedName, SanType};

    fn certificate(uris: &[&str], facts: Option<&AttestedFacts>) -> Vec<u8> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.subject_alt_names =
            uris.iter().map(|&u| SanType::URI(u.try_into().expect("ASCII"))).collect();
        params.custom_extensions = facts
            .map(|f| CustomExtension::from_oid_content(facts::OID, f.encode().expect("short")))
            .into_iter()
            .collect();
        let key = PrivateKey::generate().expect("key");
        params.self_signed(key.pair()).expect("signs").der().to_vec()
    }

    #[test]
    fn reads_name_and_facts() {
        let facts = AttestedFacts {
            namespace: "shop".into(),
            application: "web".into(),
            method: "join-token".into(),
            token_id: Some("t1".into()),
            pod: None,
        };
        let der = certificate(&["spiffe://td/ns/shop/app/web"], Some(&facts));
        let peer = PeerIdentity::from_der(&der).expect("ours");
        assert_eq!(peer.spiffe.to_string(), "spiffe://td/ns/shop/app/web");
        assert_eq!(peer.facts, Some(facts));
        assert_eq!(peer.fingerprint.len(), 64);
    }

    #[test]
    fn refuses_none_two_and_foreign_names() {
        for uris in
            [&[][..], &["https://x/"], &["spiffe://td/ns/a/app/b", "spiffe://td/ns/a/app/c"]]
        {
            let error = PeerIdentity::from_der(&certificate(uris, None)).expect_err("no name");
            assert_eq!(error.code(), Code::PeerIdentity, "{uris:?}");
        }
    }

    proptest! {
        #[test]
        fn never_panics(at in 0usize..300, byte in any::<u8>(), cut in 0usize..400) {
            let mut der = certificate(&["spiffe://td/ns/a/app/b"], None);
            let at = at % der.len();
            der[at] = byte;
            let _ = PeerIdentity::from_der(&der);
            der.truncate(cut);
            let _ = PeerIdentity::from_der(&der);
        }
    }
}
