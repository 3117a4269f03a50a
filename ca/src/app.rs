//! The authority as a process.

use std::{
    convert::Infallible,
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use arc_swap::ArcSwap;
use prometheus_client::registry::Registry;
use rulecast_api::Code;
use rulecast_identity::{
    ClientAuth, IdentityHandle, IdentityUpdater, JoinToken, Peer, ServeOptions,
    manager::RENEWAL_GRACE, serve_tls, tls,
};
use rulecast_runtime::{Readiness, Supervisor, http};
use sha2::{Digest as _, Sha256};
use tokio::{net::TcpListener, time::sleep};
use tokio_util::sync::CancellationToken;
use tonic::{Status, body::Body};
use tower::ServiceExt as _;
use tracing::{info, warn};
use zeroize::Zeroizing;

use crate::{
    Authority, CaError,
    authority::{self, MAX_LEAF, TOKENS},
    metrics::Metrics,
    rpc::{self, Limiter},
    service::{Service, is_own, status},
    tokens::Tokens,
};

/// Life of the authority's own server certificate.
const OWN_LIFE: Duration = Duration::from_secs(3600);
/// The wall clock is looked at this often, since a timer sleeps through a suspended machine.
const LOOK: Duration = Duration::from_secs(30);

/// How the authority runs.
#[derive(Clone, Debug)]
pub struct CaConfig {
    /// The authority's folder, made by [`init`].
    pub dir: PathBuf,
    /// Address for certificate requests (TLS).
    pub listen: SocketAddr,
    /// Address for metrics and probes (plain HTTP); `None`: none.
    pub http: Option<SocketAddr>,
    /// Life of a certificate when the client asks for none; 1 s to `max_ttl`.
    pub ttl: Duration,
    /// Longest life that a client may ask for; at most 24 h.
    pub max_ttl: Duration,
    /// How long open calls may go on after shutdown.
    pub drain: Duration,
}

/// Makes an authority for `trust_domain` in a new folder.
pub fn init(dir: &Path, trust_domain: &str) -> Result<(), CaError> {
    authority::init(dir, trust_domain)
}

/// Makes a join token for one application, good for one use within `ttl`, at
/// most 30 days. The authority may be running meanwhile.
pub fn create_token(
    dir: &Path,
    namespace: &str,
    application: &str,
    ttl: Duration,
) -> Result<String, CaError> {
    if is_own(namespace, application) {
        return Err(CaError::new(
            Code::ConfigInvalid,
            format!("{application} in {namespace} is the authority itself; choose another name"),
        ));
    }
    let authority = Authority::open(dir)?;
    let root = authority
        .bundle()
        .roots()
        .last()
        .ok_or_else(|| CaError::authority("the bundle has no root"))?;
    let mut secret = Zeroizing::new([0; 32]);
    authority::random(&mut *secret)?;
    Tokens::new(dir.join(TOKENS)).add(&secret, namespace, application, ttl)?;
    let token = JoinToken {
        trust_domain: authority.trust_domain().into(),
        root_fingerprint: Sha256::digest(root).into(),
        secret,
    };
    Ok(token.to_text().to_string())
}

/// How long tasks may take to stop once nothing holds them.
const STOP: Duration = Duration::from_secs(1);

/// Serves until `shutdown`, then lets open calls end within `config.drain`.
pub async fn run(config: CaConfig, shutdown: CancellationToken) -> Result<(), CaError> {
    let listener = http::bind(config.listen).await?;
    serve(config, listener, shutdown).await
}

/// As [`run`], on a listener that is bound already; `config.listen` is not used.
pub async fn serve(
    config: CaConfig,
    listener: TcpListener,
    shutdown: CancellationToken,
) -> Result<(), CaError> {
    validate(&config)?;
    let mut registry = Registry::default();
    let metrics = Metrics::new(&mut registry);
    let dir = config.dir.clone();
    let (authority, own) = blocking(move || {
        let authority = Authority::open(&dir)?;
        let own = authority.own_svid(OWN_LIFE)?;
        Ok((authority, own))
    })
    .await?;
    metrics.valid_until(own.not_after, authority.not_after());
    let trust_domain = authority.trust_domain().to_owned();
    let authority = Arc::new(ArcSwap::from_pointee(authority));
    let (identity, updater) = IdentityHandle::new(own);

    let readiness = Readiness::new();
    let supervisor = Supervisor::new(readiness.clone(), shutdown.clone());
    // Operators are answered until open calls have ended.
    let drained = CancellationToken::new();
    let operators = Supervisor::new(readiness.clone(), drained.clone());
    if let Some(address) = config.http {
        let listener = http::bind(address).await?;
        let serve = http::serve(listener, readiness.clone(), Arc::new(registry), drained.clone());
        operators.spawn("http", serve);
    }
    let service = Service::new(
        authority.clone(),
        Tokens::new(config.dir.join(TOKENS)),
        config.ttl,
        config.max_ttl.min(MAX_LEAF),
        metrics.clone(),
    );
    let refusals = metrics.clone();
    let tls = tls::server_config(
        &identity,
        ClientAuth::Optional { grace: RENEWAL_GRACE },
        Some(Arc::new(move |error| {
            refusals.refused(error.code());
            warn!(audit = true, %error, "client certificate refused");
        })),
    )?;
    let address = listener.local_addr().ok();
    let routes = routes(service, &readiness, &supervisor, &shutdown);
    let options = ServeOptions { drain: config.drain, ..ServeOptions::default() };
    let limited = limit(routes, metrics.clone());
    supervisor.spawn("tls", serve_tls(listener, tls, limited, shutdown.clone(), options));
    let keeper = Keeper { dir: config.dir.clone(), authority, identity, updater, metrics };
    supervisor.spawn("own identity", keeper.keep(readiness.clone(), shutdown.clone()));
    info!(trust_domain, address = ?address, "the certificate authority is up");

    shutdown.cancelled().await;
    readiness.block("shutdown", "draining");
    supervisor.wait(config.drain + STOP).await;
    drained.cancel();
    operators.wait(STOP).await;
    Ok(())
}

fn validate(config: &CaConfig) -> Result<(), CaError> {
    let wrong = |message: &str| Err(CaError::new(Code::ConfigInvalid, message));
    if config.max_ttl < Duration::from_secs(1) || config.max_ttl > MAX_LEAF {
        return wrong("the longest life of a certificate must be 1 second to 24 hours");
    }
    if config.ttl < Duration::from_secs(1) || config.ttl > config.max_ttl {
        return wrong("the life of a certificate must be 1 second to the longest life");
    }
    Ok(())
}

/// Runs what reads and writes files off the runtime's threads.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, CaError> + Send + 'static,
) -> Result<T, CaError> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|e| Err(CaError::authority(format!("a task broke off: {e}"))))
}

/// The services of the TLS port: identities, health and reflection.
fn routes(
    service: Service,
    readiness: &Readiness,
    supervisor: &Supervisor,
    shutdown: &CancellationToken,
) -> tonic::service::Routes {
    let (reporter, health) = tonic_health::server::health_reporter();
    let (mut ready, shutdown) = (readiness.watch(), shutdown.clone());
    supervisor.spawn("health", async move {
        loop {
            let status = match *ready.borrow_and_update() {
                true => tonic_health::ServingStatus::Serving,
                false => tonic_health::ServingStatus::NotServing,
            };
            reporter.set_service_status("", status).await;
            tokio::select! {
                changed = ready.changed() => if changed.is_err() { return Ok::<_, Infallible>(()) },
                () = shutdown.cancelled() => break,
            }
        }
        reporter.set_service_status("", tonic_health::ServingStatus::NotServing).await;
        Ok(())
    });
    let mut routes = tonic::service::Routes::builder();
    routes.add_service(service.into_server()).add_service(health);
    // The descriptors are compiled in; without them there is only no reflection.
    match tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(rulecast_api::proto::DESCRIPTORS)
        .with_service_name("rulecast.identity.v1.IdentityService")
        .build_v1()
    {
        Ok(reflection) => {
            routes.add_service(reflection);
        }
        Err(error) => warn!(%error, "there is no reflection"),
    }
    routes.routes()
}

/// Applies the table of calls before anything is read of a request.
fn limit(
    routes: tonic::service::Routes,
    metrics: Metrics,
) -> impl tower::Service<
    ::http::Request<Body>,
    Response = ::http::Response<Body>,
    Error = Infallible,
    Future: Send,
> + Clone
+ Send
+ Sync
+ 'static {
    let limiter = Arc::new(Limiter::default());
    tower::service_fn(move |request: ::http::Request<Body>| {
        let (routes, limiter, metrics) = (routes.clone(), limiter.clone(), metrics.clone());
        async move {
            let Some(rpc) = rpc::find(request.uri().path()) else {
                return Ok(Status::unimplemented("there is no such call here").into_http());
            };
            let Some(address) = request.extensions().get::<Peer>().map(|p| p.address) else {
                return Ok(Status::internal("a call without a connection").into_http());
            };
            if let Err(error) = limiter.take(address, rpc, Instant::now()) {
                metrics.refused(error.code());
                return Ok(status(&error).into_http());
            }
            routes.oneshot(request).await
        }
    })
}

/// Renews the authority's own certificate, and its intermediate.
struct Keeper {
    dir: PathBuf,
    authority: Arc<ArcSwap<Authority>>,
    identity: IdentityHandle,
    updater: IdentityUpdater,
    metrics: Metrics,
}

impl Keeper {
    async fn keep(
        self,
        readiness: Readiness,
        shutdown: CancellationToken,
    ) -> Result<(), io::Error> {
        const BLOCKER: &str = "authority";
        loop {
            let now = SystemTime::now();
            let current = self.identity.current();
            let left = current.renew_at.duration_since(now).unwrap_or_default();
            if left.is_zero() {
                match self.renew().await {
                    Ok(()) => {
                        readiness.clear(BLOCKER);
                        continue;
                    }
                    Err(error) => {
                        warn!(%error, "the authority's own certificate is not renewed");
                        // The one that is held serves until its end.
                        if !current.is_valid_at(now) {
                            readiness.block(BLOCKER, error.to_string());
                        }
                    }
                }
            }
            let pause = if left.is_zero() { LOOK } else { left.min(LOOK) };
            tokio::select! {
                () = sleep(pause) => {}
                () = shutdown.cancelled() => return Ok(()),
            }
        }
    }

    async fn renew(&self) -> Result<(), CaError> {
        let (dir, shared) = (self.dir.clone(), self.authority.clone());
        let (own, end) = blocking(move || {
            if shared.load().is_due()? {
                shared.store(Arc::new(Authority::open(&dir)?));
            }
            let authority = shared.load();
            Ok((authority.own_svid(OWN_LIFE)?, authority.not_after()))
        })
        .await?;
        self.metrics.valid_until(own.not_after, end);
        self.updater.replace(own);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_own_certificate_is_renewed_in_place() {
        let parent = tempfile::tempdir().expect("folder");
        let dir = parent.path().join("ca");
        init(&dir, "td.example").expect("made");
        let authority = Authority::open(&dir).expect("opens");
        let (identity, updater) = IdentityHandle::new(authority.own_svid(OWN_LIFE).expect("own"));
        let first = identity.current();
        let authority = Arc::new(ArcSwap::from_pointee(authority));
        let metrics = Metrics::default();
        let keeper = Keeper { dir, authority, identity: identity.clone(), updater, metrics };
        keeper.renew().await.expect("renewed");
        let second = identity.current();
        assert_eq!(second.spiffe, first.spiffe);
        assert_ne!(second.chain[0], first.chain[0]);
    }

    #[tokio::test]
    async fn it_keeps_its_own_certificate_until_shutdown() {
        let parent = tempfile::tempdir().expect("folder");
        let dir = parent.path().join("ca");
        init(&dir, "td.example").expect("made");
        let authority = Authority::open(&dir).expect("opens");
        let short = Duration::from_secs(2);
        let (identity, updater) = IdentityHandle::new(authority.own_svid(short).expect("own"));
        let end = identity.current().not_after;
        let mut changes = identity.subscribe();
        let authority = Arc::new(ArcSwap::from_pointee(authority));
        let metrics = Metrics::default();
        let keeper = Keeper { dir, authority, identity: identity.clone(), updater, metrics };
        let shutdown = CancellationToken::new();
        let task = tokio::spawn(keeper.keep(Readiness::new(), shutdown.clone()));
        let renewed = tokio::time::timeout(Duration::from_secs(20), changes.changed());
        renewed.await.expect("in time").expect("the keeper runs");
        assert!(identity.current().not_after > end);
        shutdown.cancel();
        task.await.expect("no panic").expect("ends well");
    }

    #[test]
    fn lives_are_checked() {
        let config = |ttl, max_ttl| CaConfig {
            dir: "ca".into(),
            listen: ([127, 0, 0, 1], 0).into(),
            http: None,
            ttl: Duration::from_secs(ttl),
            max_ttl: Duration::from_secs(max_ttl),
            drain: Duration::ZERO,
        };
        validate(&config(3600, 86_400)).expect("the defaults");
        for (ttl, max_ttl) in [(0, 3600), (3600, 60), (60, 86_401)] {
            let error = validate(&config(ttl, max_ttl)).expect_err("refused");
            assert_eq!(error.code(), Code::ConfigInvalid);
        }
    }
}
