//! The authority in use: its root and intermediate, and what it signs with them.

pub(crate) mod folder;
pub mod handle;
pub mod names;
pub mod parts;

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime},
};

use rcgen::{
    BasicConstraints, CertificateParams, CustomExtension, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyUsagePurpose, SanType, SerialNumber,
    SubjectPublicKeyInfo,
};
use rulecast_api::{Code, SpiffeId};
use rulecast_identity::{
    AttestedFacts, CA_APPLICATION, PrivateKey, SYSTEM_NAMESPACE, Svid, TrustBundle, facts, tls,
};
use rustls_pki_types::CertificateDer;
use time::OffsetDateTime;
use x509_parser::prelude::{FromDer, X509Certificate};

pub use self::{
    handle::{AuthorityHandle, AuthorityUpdater},
    names::ServerNames,
    parts::Parts,
};
use crate::CaError;

/// Longest life of a leaf, whatever is configured.
pub const MAX_LEAF: Duration = Duration::from_secs(24 * 3600);
/// Shortest life of a leaf; below, nobody could renew in time.
pub const MIN_LEAF: Duration = Duration::from_secs(1);
/// How long before now a certificate's time begins, for clocks that are behind.
pub const BACKDATE: Duration = Duration::from_secs(300);

const DAY: Duration = Duration::from_secs(24 * 3600);
const ROOT_DAYS: u32 = 3650;
const INTERMEDIATE_DAYS: u32 = 365;

/// An opened authority. Immutable; a renewed intermediate needs another opening.
#[derive(Debug)]
pub struct Authority {
    bundle: Arc<TrustBundle>,
    intermediate: CertificateDer<'static>,
    intermediate_key: PrivateKey,
    /// End of the intermediate's time.
    not_after: SystemTime,
    names: ServerNames,
}

/// A leaf as issued.
#[derive(Clone, Debug)]
pub struct Issued {
    /// Leaf first, then the intermediate.
    pub chain: Vec<CertificateDer<'static>>,
    /// Begin of its time: [`BACKDATE`] before it was issued.
    pub not_before: SystemTime,
    /// End of its time.
    pub not_after: SystemTime,
    /// Half of what was left when it was issued.
    pub renew_at: SystemTime,
    /// Serial number, lower-case hexadecimal.
    pub serial: String,
}

/// A server's certificate and its key.
#[derive(Clone, Debug)]
pub struct ServerCertificate {
    /// Leaf first, then the intermediate.
    pub chain: Vec<CertificateDer<'static>>,
    /// The leaf's key.
    pub key: PrivateKey,
    /// When to ask for the next one.
    pub renew_at: SystemTime,
}

fn ca_params(name: &str, path: Option<u8>, days: u32) -> Result<CertificateParams, CaError> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca =
        IsCa::Ca(path.map_or(BasicConstraints::Unconstrained, BasicConstraints::Constrained));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.use_authority_key_identifier_extension = path.is_some();
    params.serial_number = Some(serial_number()?);
    let now = SystemTime::now();
    params.not_before = seconds(now - BACKDATE);
    params.not_after = seconds(now + DAY * days);
    Ok(params)
}

impl Authority {
    /// Opens a folder, renewing an intermediate past half of its time, and
    /// proves by a trial that its parts fit together.
    pub fn open(dir: &Path) -> Result<Self, CaError> {
        folder::open(dir)
    }

    /// Whether the intermediate is past half of its time, so that the next
    /// opening replaces it.
    pub fn is_due(&self) -> Result<bool, CaError> {
        let (begin, end) = validity(&self.intermediate)?;
        let half = begin + end.duration_since(begin).unwrap_or_default() / 2;
        Ok(SystemTime::now() > half)
    }

    /// Whether both have the same intermediate and the same bundle.
    pub fn is_same(&self, other: &Self) -> bool {
        self.intermediate == other.intermediate && self.bundle == other.bundle
    }

    /// With these names in the certificates of the two servers.
    pub fn with_names(self, names: ServerNames) -> Self {
        Self { names, ..self }
    }

    /// Names in the certificates of the two servers.
    pub fn names(&self) -> &ServerNames {
        &self.names
    }

    /// The roots that verify what this authority issues.
    pub fn bundle(&self) -> &Arc<TrustBundle> {
        &self.bundle
    }

    /// Of the realm whose identities it issues.
    pub fn trust_domain(&self) -> &str {
        self.bundle.trust_domain()
    }

    /// End of the time of the intermediate that signs.
    pub fn not_after(&self) -> SystemTime {
        self.not_after
    }

    /// Issues a leaf for `public_key` (SubjectPublicKeyInfo, DER) in the name of
    /// `spiffe`, whom the caller has attested. Its life is `ttl` within
    /// [`MIN_LEAF`] and [`MAX_LEAF`], and never beyond the intermediate's.
    pub fn issue(
        &self,
        public_key: &[u8],
        spiffe: &SpiffeId,
        attested: &AttestedFacts,
        ttl: Duration,
    ) -> Result<Issued, CaError> {
        if spiffe.trust_domain != self.trust_domain() {
            return Err(CaError::new(
                Code::PeerTrustDomain,
                format!("{spiffe} is not of trust domain {}", self.trust_domain()),
            ));
        }
        let uri = spiffe.to_string().try_into().map_err(signing)?;
        let mut extension = CustomExtension::from_oid_content(facts::OID, attested.encode()?);
        extension.set_criticality(false);
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![SanType::URI(uri)];
        params.subject_alt_names.extend_from_slice(self.names.of(spiffe));
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
        params.custom_extensions = vec![extension];
        self.sign(params, public_key, ttl)
    }

    /// Signs a leaf with the names, usages and extensions of `params`.
    fn sign(
        &self,
        mut params: CertificateParams,
        public_key: &[u8],
        ttl: Duration,
    ) -> Result<Issued, CaError> {
        let now = whole_seconds(SystemTime::now());
        if now >= self.not_after {
            return Err(CaError::authority(
                "the intermediate has expired; see that clocks are right and restart the authority",
            ));
        }
        let not_before = now - BACKDATE;
        let not_after = (now + ttl.clamp(MIN_LEAF, MAX_LEAF)).min(self.not_after);
        let serial = serial_number()?;
        // No subject: the SAN is then marked critical.
        params.distinguished_name = DistinguishedName::new();
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        params.serial_number = Some(serial.clone());
        params.not_before = seconds(not_before);
        params.not_after = seconds(not_after);
        let public_key = SubjectPublicKeyInfo::from_der(public_key).map_err(signing)?;
        let issuer = Issuer::from_ca_cert_der(&self.intermediate, self.intermediate_key.pair())
            .map_err(signing)?;
        let leaf = params.signed_by(&public_key, &issuer).map_err(signing)?;
        Ok(Issued {
            chain: vec![leaf.der().clone(), self.intermediate.clone()],
            not_before,
            not_after,
            renew_at: now + not_after.duration_since(now).unwrap_or_default() / 2,
            serial: hex::encode(serial.to_bytes()),
        })
    }

    /// A certificate with a new key for a TLS server of the authority's own
    /// process that clients know by DNS name or IP address: the pod webhook, which
    /// the API server calls. It is nobody's identity: it has no SPIFFE name, and
    /// may not be shown by a client. Its chain is leaf and intermediate, and
    /// verifies under [`roots_pem`](Self::roots_pem).
    pub fn webhook_certificate(
        &self,
        hosts: &[String],
        life: Duration,
    ) -> Result<ServerCertificate, CaError> {
        let name = |host: &String| names::host_name(host);
        let mut params = CertificateParams::default();
        params.subject_alt_names = hosts.iter().map(name).collect::<Result<_, CaError>>()?;
        if hosts.is_empty() {
            return Err(CaError::new(Code::ConfigInvalid, "a server needs a host name"));
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let key = PrivateKey::generate()?;
        let issued = self.sign(params, &key.public_key(), life)?;
        Ok(ServerCertificate { chain: issued.chain, key, renew_at: issued.renew_at })
    }

    /// The roots as plain PEM, as other programs read it.
    pub fn roots_pem(&self) -> String {
        let block = |root: &CertificateDer<'_>| pem::Pem::new("CERTIFICATE", root.to_vec());
        let blocks: Vec<_> = self.bundle.roots().iter().map(block).collect();
        let lines = pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF);
        pem::encode_many_config(&blocks, lines)
    }

    /// The authority's own identity with a new key, `/ns/rulecast-system/app/rulecast-ca`.
    /// Its chain ends with the root, so that a first contact can compare the
    /// root with the fingerprint that it knows.
    pub fn own_svid(&self, ttl: Duration) -> Result<Svid, CaError> {
        let (namespace, application) = (SYSTEM_NAMESPACE, CA_APPLICATION);
        let spiffe = SpiffeId::application(self.trust_domain(), namespace, application)
            .map_err(|e| CaError::authority(e.to_string()))?;
        self.issue_service(&spiffe, ttl)
    }

    /// The identity of a service that runs in the authority's own process, with
    /// a new key; without a credential, so never for a caller from outside. Its
    /// chain ends with the root.
    pub fn issue_service(&self, spiffe: &SpiffeId, ttl: Duration) -> Result<Svid, CaError> {
        if spiffe.namespace != SYSTEM_NAMESPACE || spiffe.trust_domain != self.trust_domain() {
            return Err(CaError::new(
                Code::OtherApplication,
                format!(
                    "{spiffe} is no service of this authority; those are in namespace \
                     {SYSTEM_NAMESPACE} of trust domain {}",
                    self.trust_domain()
                ),
            ));
        }
        let attested = AttestedFacts {
            namespace: spiffe.namespace.clone(),
            application: spiffe.workload.name().into(),
            method: "service".into(),
            token_id: None,
            pod: None,
        };
        let key = PrivateKey::generate()?;
        let mut issued = self.issue(&key.public_key(), spiffe, &attested, ttl)?;
        issued.chain.push(root_of(&self.bundle)?.clone());
        Ok(Svid::new(issued.chain, key, self.bundle.clone(), Some(issued.renew_at))?)
    }
}

/// The root that signs: the newest.
fn root_of(bundle: &TrustBundle) -> Result<&CertificateDer<'static>, CaError> {
    bundle.roots().last().ok_or_else(|| CaError::authority("the bundle has no root"))
}

fn signing(error: rcgen::Error) -> CaError {
    CaError::authority(format!("a certificate cannot be signed: {error}"))
}

/// Begin and end of a certificate's time.
fn validity(der: &[u8]) -> Result<(SystemTime, SystemTime), CaError> {
    let (_, certificate) = X509Certificate::from_der(der)
        .map_err(|e| CaError::authority(format!("a certificate is malformed ({e})")))?;
    let time = |seconds: i64| {
        SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or_default())
    };
    let validity = certificate.validity();
    Ok((time(validity.not_before.timestamp()), time(validity.not_after.timestamp())))
}

/// Certificates know no fractions.
fn whole_seconds(time: SystemTime) -> SystemTime {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    SystemTime::UNIX_EPOCH + Duration::from_secs(since.as_secs())
}

fn seconds(time: SystemTime) -> OffsetDateTime {
    OffsetDateTime::from(whole_seconds(time))
}

/// 126 bits that nobody can foresee: positive, of one length and, for all purposes, unique.
fn serial_number() -> Result<SerialNumber, CaError> {
    let mut bytes = [0; 16];
    random(&mut bytes)?;
    bytes[0] = bytes[0] & 0x7f | 0x40;
    Ok(SerialNumber::from_slice(&bytes))
}

/// Fills `bytes` with random ones, fit for secrets.
pub(crate) fn random(bytes: &mut [u8]) -> Result<(), CaError> {
    tls::provider()
        .secure_random
        .fill(bytes)
        .map_err(|_| CaError::authority("the system gives no random numbers"))
}

#[cfg(test)]
mod tests;
