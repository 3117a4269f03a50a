//! The authority's folder, and what is signed with it.
//!
//! | file | what |
//! |---|---|
//! | `authority.json` | trust domain, and the sequence of its bundle |
//! | `root.pem` | the root certificate |
//! | `root.key` | its key |
//! | `intermediate.pem` | key and certificate of what signs leaves |
//! | `tokens/` | join tokens, see [`tokens`](crate::tokens) |
//!
//! The folder has mode 0700 and its files 0600; wider ones are refused.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime},
};

use rcgen::{
    BasicConstraints, Certificate, CertificateParams, CustomExtension, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyUsagePurpose, SanType, SerialNumber,
    SubjectPublicKeyInfo,
};
use rulecast_api::{Code, SpiffeId, spiffe::valid_trust_domain};
use rulecast_identity::{
    AttestedFacts, CA_APPLICATION, PrivateKey, SYSTEM_NAMESPACE, Svid, TrustBundle, facts, files,
    tls,
};
use rustls_pki_types::{CertificateDer, UnixTime};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use x509_parser::prelude::{FromDer, X509Certificate};
use zeroize::Zeroizing;

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

/// Folder of the join tokens within the authority's.
pub(crate) const TOKENS: &str = "tokens";
const ABOUT: &str = "authority.json";
const ROOT: &str = "root.pem";
const ROOT_KEY: &str = "root.key";
const INTERMEDIATE: &str = "intermediate.pem";

/// An opened authority. Immutable; a renewed intermediate needs another opening.
#[derive(Debug)]
pub struct Authority {
    bundle: Arc<TrustBundle>,
    intermediate: CertificateDer<'static>,
    intermediate_key: PrivateKey,
    /// End of the intermediate's time.
    not_after: SystemTime,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct About {
    trust_domain: String,
    sequence: u64,
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

/// Makes root and intermediate in a new folder. All of it appears at once: a
/// folder that is there and not empty is refused and left as it is.
pub(crate) fn init(dir: &Path, trust_domain: &str) -> Result<(), CaError> {
    if !valid_trust_domain(trust_domain) {
        return Err(CaError::new(
            Code::ConfigInvalid,
            format!("\"{trust_domain}\" is no trust domain; use 1 to 255 of a-z0-9._-"),
        ));
    }
    let failed = |path: &Path, e: std::io::Error| {
        CaError::authority(format!("{}: {e}; choose a folder that can be made", path.display()))
    };
    let name = dir.file_name().ok_or_else(|| {
        CaError::authority(format!("{} is no name for a new folder", dir.display()))
    })?;
    let parent = match dir.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    fs::create_dir_all(parent).map_err(|e| failed(parent, e))?;
    let making = parent.join(format!(".{}.{}.new", name.to_string_lossy(), std::process::id()));
    files::make_folder(&making)?;
    let made = fill(&making, trust_domain).and_then(|()| {
        fs::rename(&making, dir).map_err(|e| {
            if fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some()) {
                CaError::authority(format!(
                    "{} is not empty; an authority is made in a new folder only",
                    dir.display()
                ))
            } else {
                failed(dir, e)
            }
        })
    });
    if made.is_err() {
        let _ = fs::remove_dir_all(&making);
    }
    made
}

fn fill(dir: &Path, trust_domain: &str) -> Result<(), CaError> {
    let root_key = PrivateKey::generate()?;
    root_key.save(&dir.join(ROOT_KEY))?;
    let params = ca_params(&format!("Rulecast root of {trust_domain}"), None, ROOT_DAYS)?;
    let root = params.self_signed(root_key.pair()).map_err(signing)?;
    files::make_folder(&dir.join(TOKENS))?;
    let bundle = TrustBundle::new(trust_domain, vec![root.der().clone()], 1)?;
    renew_intermediate(dir, &bundle, &root_key)?;
    files::replace(&dir.join(ROOT), root.pem().replace("\r\n", "\n").as_bytes())?;
    let about = About { trust_domain: trust_domain.into(), sequence: bundle.sequence() };
    let about = serde_json::to_vec_pretty(&about).map_err(|e| CaError::authority(e.to_string()))?;
    files::replace(&dir.join(ABOUT), &about)?;
    Ok(())
}

/// A new intermediate with a new key.
fn renew_intermediate(
    dir: &Path,
    bundle: &TrustBundle,
    root_key: &PrivateKey,
) -> Result<(), CaError> {
    let root = root_of(bundle)?;
    let key = PrivateKey::generate()?;
    let name = format!("Rulecast intermediate of {}", bundle.trust_domain());
    let mut params = ca_params(&name, Some(0), INTERMEDIATE_DAYS)?;
    let (_, end) = validity(root)?;
    params.not_after = params.not_after.min(seconds(end));
    let issuer = Issuer::from_ca_cert_der(root, root_key.pair()).map_err(signing)?;
    let certificate: Certificate = params.signed_by(key.pair(), &issuer).map_err(signing)?;
    // Both in one file, so that a crash cannot part them.
    let text =
        Zeroizing::new(format!("{}{}", *key.to_pem(), certificate.pem()).replace("\r\n", "\n"));
    files::replace(&dir.join(INTERMEDIATE), text.as_bytes())?;
    Ok(())
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
    /// Opens the folder, renewing an intermediate past half of its time, and
    /// proves by a trial that its parts fit together.
    pub fn open(dir: &Path) -> Result<Self, CaError> {
        let metadata = fs::metadata(dir).map_err(|e| {
            CaError::authority(format!(
                "{}: {e}; make an authority with `rulecast ca init`",
                dir.display()
            ))
        })?;
        let mode = metadata.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(CaError::new(
                Code::KeyPermissions,
                format!(
                    "{} has mode {mode:04o}; others could reach the authority's keys: chmod 700 it",
                    dir.display()
                ),
            ));
        }
        // Read at the next renewal only, but open to others now.
        match files::read_secret(&dir.join(ROOT_KEY)) {
            Err(error) if error.code() == Code::KeyPermissions => return Err(error.into()),
            // It may be kept elsewhere between renewals.
            _ => {}
        }
        let about: About = serde_json::from_str(&read(dir, ABOUT)?)
            .map_err(|e| damaged(dir, ABOUT, &e.to_string()))?;
        let root =
            pem::parse(&*read(dir, ROOT)?).map_err(|e| damaged(dir, ROOT, &e.to_string()))?;
        let roots = vec![CertificateDer::from(root.into_contents())];
        let bundle = TrustBundle::new(about.trust_domain, roots, about.sequence)
            .map_err(|e| damaged(dir, ROOT, e.message()))?;
        let mut authority = Self::read(dir, Arc::new(bundle))?;
        if authority.is_due()? {
            let root_key = PrivateKey::from_pem(&read(dir, ROOT_KEY)?)
                .map_err(|e| damaged(dir, ROOT_KEY, e.message()))?;
            renew_intermediate(dir, &authority.bundle, &root_key)?;
            authority = Self::read(dir, authority.bundle)?;
        }
        authority.prove(dir)?;
        Ok(authority)
    }

    fn read(dir: &Path, bundle: Arc<TrustBundle>) -> Result<Self, CaError> {
        let text = read(dir, INTERMEDIATE)?;
        let bad = |why: &str| damaged(dir, INTERMEDIATE, why);
        let blocks = pem::parse_many(&*text).map_err(|e| bad(&e.to_string()))?;
        let [key, certificate] = &blocks[..] else {
            return Err(bad("it must hold a key and a certificate"));
        };
        if certificate.tag() != "CERTIFICATE" {
            return Err(bad("its second block is no certificate"));
        }
        let key = Zeroizing::new(pem::encode(key));
        let intermediate_key = PrivateKey::from_pem(&key).map_err(|e| bad(e.message()))?;
        let intermediate = CertificateDer::from(certificate.contents().to_vec());
        let (_, not_after) = validity(&intermediate).map_err(|e| bad(e.message()))?;
        Ok(Self { bundle, intermediate, intermediate_key, not_after })
    }

    /// A leaf of the authority must verify under its own root.
    fn prove(&self, dir: &Path) -> Result<(), CaError> {
        let svid = self.own_svid(MIN_LEAF)?;
        let bad = |why: String| damaged(dir, INTERMEDIATE, &why);
        let [leaf, intermediates @ ..] = &svid.chain[..] else {
            return Err(bad("the chain is empty".into()));
        };
        let leaf = webpki::EndEntityCert::try_from(leaf).map_err(|e| bad(e.to_string()))?;
        let anchors = self
            .bundle
            .roots()
            .iter()
            .map(webpki::anchor_from_trusted_cert)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|e| damaged(dir, ROOT, &e.to_string()))?;
        leaf.verify_for_usage(
            webpki::ALL_VERIFICATION_ALGS,
            &anchors,
            intermediates,
            UnixTime::now(),
            webpki::KeyUsage::server_auth(),
            None,
            None,
        )
        .map_err(|e| bad(format!("what it signs does not verify under the root ({e})")))?;
        Ok(())
    }

    /// Whether the intermediate is past half of its time, so that the next
    /// opening replaces it.
    pub fn is_due(&self) -> Result<bool, CaError> {
        let (begin, end) = validity(&self.intermediate)?;
        let half = begin + end.duration_since(begin).unwrap_or_default() / 2;
        Ok(SystemTime::now() > half)
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
        let now = whole_seconds(SystemTime::now());
        if now >= self.not_after {
            return Err(CaError::authority(
                "the intermediate has expired; see that clocks are right and restart the authority",
            ));
        }
        let not_before = now - BACKDATE;
        let not_after = (now + ttl.clamp(MIN_LEAF, MAX_LEAF)).min(self.not_after);
        let uri = spiffe.to_string().try_into().map_err(signing)?;
        let serial = serial_number()?;
        let mut extension = CustomExtension::from_oid_content(facts::OID, attested.encode()?);
        extension.set_criticality(false);
        let mut params = CertificateParams::default();
        // No subject: the SAN is then marked critical.
        params.distinguished_name = DistinguishedName::new();
        params.subject_alt_names = vec![SanType::URI(uri)];
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
        params.custom_extensions = vec![extension];
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

fn read(dir: &Path, name: &str) -> Result<Zeroizing<String>, CaError> {
    let path = dir.join(name);
    if !path.exists() {
        return Err(damaged(dir, name, "it is missing"));
    }
    Ok(Zeroizing::new(files::read_secret(&path)?))
}

fn damaged(dir: &Path, name: &str, why: &str) -> CaError {
    CaError::authority(format!(
        "{}: {why}; restore the folder from a backup, or make an authority with `rulecast ca init`",
        dir.join(name).display()
    ))
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
