//! Getting an identity, and keeping it current.

use std::{
    path::PathBuf,
    time::{Duration, SystemTime},
};

use rulecast_api::{Code, SpiffeId};
use rustls_pki_types::CertificateDer;
use tokio::{sync::watch, time::sleep};

use crate::{
    ConnectOptions, Credential, IdentityClient, IdentityError, IdentityHandle, IdentityUpdater,
    PrivateKey, Svid, TokenSource, credential::read_roots, state::StateDir,
};

/// How long after its end a certificate may still be renewed. Not a pod's: it joins anew.
pub const RENEWAL_GRACE: Duration = Duration::from_secs(24 * 3600);

/// The wall clock is looked at this often: a timer alone sleeps through a
/// suspended machine and does not see the clock being set.
const LOOK: Duration = Duration::from_secs(30);

/// Longest pause between two attempts.
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// What an [`IdentityManager`] works with.
#[derive(Clone, Debug)]
pub struct IdentityConfig {
    /// The authority, `host:port`.
    pub ca: String,
    /// For the first certificate. A join token is not looked at while the state folder holds
    /// a certificate that can be used or renewed. A pod's credential also helps whenever a
    /// certificate has ended or is refused.
    pub token: Option<TokenSource>,
    /// Folder that keeps key and certificate; `None`: they end with the process, as they
    /// always do with [`TokenSource::Kubernetes`].
    pub state_dir: Option<PathBuf>,
    /// The namespace that the identity must have, if it matters.
    pub namespace: Option<String>,
    /// The application that the identity must have, if it matters. Not looked at with
    /// [`TokenSource::Kubernetes`], where an identity names a service account.
    pub application: Option<String>,
    /// Wanted life of certificates; `None`: the authority's default.
    pub ttl: Option<Duration>,
    /// Times of connections to the authority.
    pub connect: ConnectOptions,
    /// Where to tell how it stands, also before there is an identity.
    pub status: watch::Sender<IdentityStatus>,
}

impl IdentityConfig {
    /// With the authority's address, and nothing else set.
    pub fn new(ca: impl Into<String>) -> Self {
        Self {
            ca: ca.into(),
            token: None,
            state_dir: None,
            namespace: None,
            application: None,
            ttl: None,
            connect: ConnectOptions::default(),
            status: watch::Sender::default(),
        }
    }
}

/// How it stands with an identity.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdentityStatus {
    /// Whose certificate is held.
    pub spiffe: Option<SpiffeId>,
    /// End of its time.
    pub not_after: Option<SystemTime>,
    /// Certificates received by this process.
    pub issued: u64,
    /// Why the last attempt failed; `None` after a success.
    pub last_error: Option<IdentityError>,
}

/// Gets an identity and keeps it current.
#[derive(Debug)]
pub struct IdentityManager {
    config: IdentityConfig,
    client: IdentityClient,
    state: Option<StateDir>,
    /// Without a state folder: the key of a join whose answer has not come yet.
    join_key: Option<PrivateKey>,
    /// In a pod: the roots in the file when it was looked at last.
    roots: Vec<CertificateDer<'static>>,
}

impl IdentityManager {
    /// Waits for an identity: from the state folder, or of the authority by the
    /// join token or the pod's credential. Returns a handle and the worker that renews it;
    /// spawn the worker, it never ends. Goes on trying while the authority is not
    /// reachable (cancel by dropping, see `config.status` meanwhile); fails
    /// when waiting would not help. In a pod also a refusal is tried again, because the
    /// kubelet replaces token and roots.
    pub async fn start(
        config: IdentityConfig,
    ) -> Result<(IdentityHandle, impl Future<Output = ()> + Send + 'static), IdentityError> {
        let kept = config.state_dir.clone().filter(|_| !lasting(&config));
        let state = kept.map(StateDir::open).transpose()?;
        let client = IdentityClient::new(config.ca.clone(), config.connect.clone());
        let mut manager = Self { config, client, state, join_key: None, roots: Vec::new() };
        let mut svid = manager.stored()?;
        let mut pause = Pause::new(MAX_PAUSE);
        let svid = loop {
            match svid {
                Some(svid) if svid.is_valid_at(SystemTime::now()) => break svid,
                _ => {}
            }
            match manager.next(svid.as_ref()).await {
                Ok(new) => svid = Some(new),
                Err(error) => {
                    manager.failed(&error);
                    // A restart helps no more than waiting would: the answer stays the same.
                    if !manager.may_pass(&error) {
                        return Err(error);
                    }
                    sleep(pause.next()).await;
                }
            }
        };
        manager.config.status.send_modify(|status| {
            status.spiffe = Some(svid.spiffe.clone());
            status.not_after = Some(svid.not_after);
        });
        let (handle, updater) = IdentityHandle::new(svid);
        Ok((handle.clone(), manager.keep_current(handle, updater)))
    }

    /// What the state folder holds, if it can still be used or renewed.
    fn stored(&self) -> Result<Option<Svid>, IdentityError> {
        let Some(state) = &self.state else { return Ok(None) };
        let svid = match state.load() {
            Ok(Some(svid)) => svid,
            Ok(None) => return Ok(None),
            Err(error) if error.code() == Code::IdentityState && self.config.token.is_some() => {
                tracing::warn!(%error, "the stored identity is ignored, joining anew");
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        self.is_ours(&svid.spiffe, "the state folder holds a certificate of")?;
        if SystemTime::now() > svid.not_after + RENEWAL_GRACE {
            if self.config.token.is_none() {
                return Err(IdentityError::new(
                    Code::PeerExpired,
                    "the stored certificate ended more than 24 hours ago and cannot be renewed; \
                     give a new join token",
                ));
            }
            tracing::warn!(spiffe = %svid.spiffe, "the stored identity is too old, joining anew");
            return Ok(None);
        }
        Ok(Some(svid))
    }

    /// Whether another attempt may end otherwise.
    fn may_pass(&self, error: &IdentityError) -> bool {
        // These the next token and the next roots do not mend.
        let settled = matches!(
            error.code(),
            Code::ConfigInvalid | Code::CredentialMissing | Code::OtherApplication
        );
        error.is_temporary() || lasting(&self.config) && !settled
    }

    fn is_ours(&self, spiffe: &SpiffeId, what: &str) -> Result<(), IdentityError> {
        let IdentityConfig { namespace, application, .. } = &self.config;
        let application = application.as_ref().filter(|_| !lasting(&self.config));
        if namespace.as_ref().is_some_and(|namespace| spiffe.namespace != *namespace)
            || application.is_some_and(|name| spiffe.workload.name() != name)
        {
            return Err(IdentityError::new(
                Code::OtherApplication,
                format!(
                    "{what} {spiffe}, but this is application {} in namespace {}; give each \
                     application its own token and state folder",
                    application.map_or("(any)", String::as_str),
                    namespace.as_deref().unwrap_or("(any)"),
                ),
            ));
        }
        Ok(())
    }

    /// The next certificate: renewed if there is one that may be, else joined.
    async fn next(&mut self, current: Option<&Svid>) -> Result<Svid, IdentityError> {
        let renewed = match current.filter(|svid| self.is_renewable(svid)) {
            None => None,
            Some(svid) => {
                let key = PrivateKey::generate()?;
                match self.client.renew(svid, &key, self.config.ttl).await {
                    Ok(new) => Some(new),
                    // What was good for the first certificate is no weaker than the
                    // certificate, and knows of new roots.
                    Err(error) if lasting(&self.config) && !error.is_temporary() => {
                        tracing::warn!(code = %error.code(), error = error.message(),
                            "the certificate is not renewed, joining anew");
                        None
                    }
                    Err(error) => return Err(error),
                }
            }
        };
        let svid = match renewed {
            Some(svid) => svid,
            None => self.join(current).await?,
        };
        self.config.status.send_modify(|status| {
            status.spiffe = Some(svid.spiffe.clone());
            status.not_after = Some(svid.not_after);
            status.issued += 1;
            status.last_error = None;
        });
        // It is good even if it cannot be kept.
        if let Some(state) = &self.state
            && let Err(error) = state.store(&svid).and_then(|()| state.joined())
        {
            self.failed(&error);
        }
        self.join_key = None;
        Ok(svid)
    }

    /// Whether the certificate itself may still get the next one.
    fn is_renewable(&self, svid: &Svid) -> bool {
        let now = SystemTime::now();
        if lasting(&self.config) {
            return svid.is_valid_at(now);
        }
        now <= svid.not_after + RENEWAL_GRACE || self.config.token.is_none()
    }

    async fn join(&mut self, current: Option<&Svid>) -> Result<Svid, IdentityError> {
        let source = self.config.token.as_ref().ok_or_else(|| {
            IdentityError::new(
                Code::CredentialMissing,
                "there is neither a stored certificate nor a join token; make one with \
                 `rulecast ca token create`",
            )
        })?;
        let credential = source.read().await?;
        let key = match (&self.state, &self.join_key) {
            (Some(state), _) => state.join_key()?,
            (None, Some(key)) => key.clone(),
            (None, None) => self.join_key.insert(PrivateKey::generate()?).clone(),
        };
        match credential {
            Credential::Join(token) => {
                let svid = self.client.join(&token, &key, self.config.ttl).await?;
                self.is_ours(&svid.spiffe, "the join token is of")?;
                Ok(svid)
            }
            Credential::Kubernetes(credential) => {
                let ttl = self.config.ttl;
                let svid = self.client.join_kubernetes(&credential, &key, ttl).await?;
                self.is_ours(&svid.spiffe, "the service-account token is of")?;
                if let Some(current) = current {
                    same_workload(current, &svid)?;
                }
                self.roots = credential.roots;
                Ok(svid)
            }
        }
    }

    /// Whether a root has come into the pod's file that `svid` does not know: whoever has a
    /// certificate under it would be taken for a stranger until the next renewal. Each
    /// content of the file counts once.
    async fn roots_have_come(&mut self, svid: &Svid) -> bool {
        let Some(TokenSource::Kubernetes { bundle, .. }) = &self.config.token else {
            return false;
        };
        // One that cannot be read now is looked at again soon.
        let Ok(roots) = read_roots(bundle).await else { return false };
        if roots == self.roots {
            return false;
        }
        let new = roots.iter().any(|root| !svid.bundle.roots().contains(root));
        self.roots = roots;
        new
    }

    fn failed(&self, error: &IdentityError) {
        tracing::warn!(code = %error.code(), error = error.message(), "no new certificate");
        self.config.status.send_modify(|status| status.last_error = Some(error.clone()));
    }

    async fn keep_current(mut self, handle: IdentityHandle, updater: IdentityUpdater) {
        loop {
            let svid = handle.current();
            let rest = svid.not_after.duration_since(svid.renew_at).unwrap_or_default();
            let due = jittered(svid.renew_at, rest);
            let look = (rest / 10).clamp(Duration::from_millis(50), LOOK);
            // Also when the clock was set back before the certificate's time.
            loop {
                let now = SystemTime::now();
                match due.duration_since(now) {
                    Ok(left) if !left.is_zero() && now >= svid.not_before => {
                        sleep(left.min(look)).await;
                    }
                    _ => break,
                }
                if self.roots_have_come(&svid).await {
                    tracing::info!("the authority has a new root, renewing early");
                    break;
                }
            }
            let mut pause = Pause::new((rest / 4).clamp(Duration::from_millis(100), MAX_PAUSE));
            loop {
                match self.next(Some(&svid)).await {
                    Ok(new) => {
                        tracing::info!(spiffe = %new.spiffe, "certificate renewed");
                        updater.replace(new);
                        break;
                    }
                    Err(error) => self.failed(&error),
                }
                sleep(pause.next()).await;
            }
        }
    }
}

/// Whether the credential for the first certificate serves for every later one too.
fn lasting(config: &IdentityConfig) -> bool {
    config.token.as_ref().is_some_and(TokenSource::is_lasting)
}

/// A pod has one service account for its life; only the trust domain may get another name.
fn same_workload(before: &Svid, now: &Svid) -> Result<(), IdentityError> {
    let (before, now) = (&before.spiffe, &now.spiffe);
    if (&before.namespace, &before.workload) == (&now.namespace, &now.workload) {
        return Ok(());
    }
    Err(IdentityError::new(
        Code::OtherApplication,
        format!("this is {before}, the service-account token is of {now}"),
    ))
}

/// `at`, up to a tenth of `rest` earlier or later.
fn jittered(at: SystemTime, rest: Duration) -> SystemTime {
    let span = rest / 10;
    at - span + span.mul_f64(2.0 * fastrand::f64())
}

/// Pauses that double from a second (or less) to `max`, each anywhere between
/// half and whole, so that clients that failed together do not come back together.
struct Pause {
    next: Duration,
    max: Duration,
}

impl Pause {
    fn new(max: Duration) -> Self {
        Self { next: max.min(Duration::from_millis(500)), max }
    }

    fn next(&mut self) -> Duration {
        let pause = self.next.mul_f64(0.5 + fastrand::f64() / 2.0);
        self.next = (self.next * 2).min(self.max);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_and_pauses_stay_in_bounds() {
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
        let mut pause = Pause::new(Duration::from_secs(4));
        let mut last = Duration::ZERO;
        for _ in 0..1000 {
            let due = jittered(at, Duration::from_secs(100));
            assert!(due >= at - Duration::from_secs(10) && due <= at + Duration::from_secs(10));
            last = pause.next();
            assert!(last <= Duration::from_secs(4));
        }
        assert!(last >= Duration::from_secs(2));
    }

    #[tokio::test]
    async fn without_a_credential_it_fails_at_once() {
        let error = match IdentityManager::start(IdentityConfig::new("127.0.0.1:1")).await {
            Ok(_) => panic!("there is nothing to start from"),
            Err(error) => error,
        };
        assert_eq!(error.code(), Code::CredentialMissing);
        let source = TokenSource::Text("rcjt1.secret".into());
        assert!(!format!("{source:?}").contains("secret"));
    }
}
