//! The authority as a process.

use std::{
    convert::Infallible,
    net::SocketAddr,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use prometheus_client::registry::Registry;
use rulecast_api::Code;
use rulecast_identity::{
    ClientAuth, IdentityHandle, JoinToken, Peer, ServeOptions, manager::RENEWAL_GRACE, serve_tls,
    tls,
};
use rulecast_runtime::{Readiness, Supervisor, http};
use sha2::{Digest as _, Sha256};
use tokio::{net::TcpListener, time::sleep};
use tokio_util::sync::CancellationToken;
use tonic::{Status, body::Body};
use tower::ServiceExt as _;
use tracing::{info, warn};
use zeroize::Zeroizing;

#[cfg(feature = "kubernetes")]
use crate::kubernetes::{app as cluster, attestor::PodAttestor};
use crate::{
    Authority, CaError, Place,
    authority::{
        self, AuthorityHandle, MAX_LEAF, ServerNames,
        folder::{self, TOKENS},
    },
    dubbo::{DubboConfig, DubboService},
    keeper::{Keeper, OWN_LIFE},
    metrics::Metrics,
    place::Source,
    rpc::{self, Limiter},
    service::{Attestor, Service, is_own, status},
    tokens::Tokens,
};

/// How the authority runs.
#[derive(Clone, Debug)]
pub struct CaConfig {
    /// Where the authority is kept.
    pub place: Place,
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
    /// For clients of the Dubbo control plane.
    pub dubbo: DubboConfig,
}

/// Makes an authority for `trust_domain` in a new folder.
pub fn init(dir: &Path, trust_domain: &str) -> Result<(), CaError> {
    folder::init(dir, trust_domain)
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
/// Between two attempts to open an authority that cannot be reached now.
const RETRY: Duration = Duration::from_secs(2);

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
    let names = ServerNames::new(&config.dubbo.names, &config.dubbo.dds_names)?;
    let mut registry = Registry::default();
    let metrics = Metrics::new(&mut registry);
    let readiness = Readiness::new();
    let supervisor = Supervisor::new(readiness.clone(), shutdown.clone());
    // Operators are answered until open calls have ended.
    let drained = CancellationToken::new();
    let _drained = drained.clone().drop_guard();
    let operators = Supervisor::new(readiness.clone(), drained.clone());
    if let Some(address) = config.http {
        let listener = http::bind(address).await?;
        let serve = http::serve(listener, readiness.clone(), Arc::new(registry), drained.clone());
        operators.spawn("http", serve);
    }

    let (mut source, attestor) = match &config.place {
        Place::Folder(dir) => {
            let tokens = Tokens::new(dir.join(TOKENS));
            (Source::Folder(dir.clone()), Attestor::JoinTokens(tokens))
        }
        #[cfg(feature = "kubernetes")]
        Place::Cluster(cluster) => {
            let client = cluster::connect(cluster).await?;
            (cluster::source(cluster, &client), Attestor::Pods(PodAttestor::new(client)))
        }
    };
    let Some(authority) = open(&mut source, &readiness, &shutdown).await? else { return Ok(()) };
    let authority = authority.with_names(names);
    let own = authority.own_svid(OWN_LIFE)?;
    metrics.valid_until(own.not_after, authority.not_after());
    let trust_domain = authority.trust_domain().to_owned();
    let (authority, authority_updater) = AuthorityHandle::new(authority);
    let (identity, identity_updater) = IdentityHandle::new(own);
    #[cfg(feature = "kubernetes")]
    if let (Place::Cluster(config), Attestor::Pods(pods)) = (&config.place, &attestor) {
        let parts = cluster::Parts {
            client: pods.client().clone(),
            authority: authority.clone(),
            metrics: metrics.clone(),
        };
        cluster::spawn(config, parts, &supervisor, &shutdown).await?;
    }

    let service = Service::new(
        authority.clone(),
        attestor,
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
    let dubbo = DubboService::new(service.clone(), config.dubbo.tokens);
    let routes = routes(service, dubbo, &readiness, &supervisor, &shutdown);
    let options = ServeOptions { drain: config.drain, ..ServeOptions::default() };
    let limited = limit(routes, metrics.clone());
    supervisor.spawn("tls", serve_tls(listener, tls, limited, shutdown.clone(), options));
    let keeper =
        Keeper { source, authority, authority_updater, identity, identity_updater, metrics };
    supervisor.spawn("own identity", keeper.keep(readiness.clone(), shutdown.clone()));
    info!(trust_domain, address = ?address, "the certificate authority is up");

    shutdown.cancelled().await;
    readiness.block("shutdown", "draining");
    supervisor.wait(config.drain + STOP).await;
    drained.cancel();
    operators.wait(STOP).await;
    Ok(())
}

/// Opens the authority; waits while it cannot be reached. `None`: shutdown came first.
async fn open(
    source: &mut Source,
    readiness: &Readiness,
    shutdown: &CancellationToken,
) -> Result<Option<Authority>, CaError> {
    const BLOCKER: &str = "opening the authority";
    readiness.block(BLOCKER, "not read yet");
    loop {
        let opened = tokio::select! {
            opened = source.open() => opened,
            () = shutdown.cancelled() => return Ok(None),
        };
        match opened {
            Ok(authority) => {
                readiness.clear(BLOCKER);
                return Ok(Some(authority));
            }
            Err(error) if error.code() == Code::AuthorityUnreachable => {
                warn!(%error, "the authority cannot be opened yet");
                readiness.block(BLOCKER, error.to_string());
            }
            Err(error) => return Err(error),
        }
        tokio::select! {
            () = sleep(RETRY) => {}
            () = shutdown.cancelled() => return Ok(None),
        }
    }
}

fn validate(config: &CaConfig) -> Result<(), CaError> {
    let wrong = |message: &str| Err(CaError::new(Code::ConfigInvalid, message));
    if config.max_ttl < Duration::from_secs(1) || config.max_ttl > MAX_LEAF {
        return wrong("the longest life of a certificate must be 1 second to 24 hours");
    }
    if config.ttl < Duration::from_secs(1) || config.ttl > config.max_ttl {
        return wrong("the life of a certificate must be 1 second to the longest life");
    }
    match &config.place {
        Place::Folder(_) => Ok(()),
        #[cfg(feature = "kubernetes")]
        Place::Cluster(cluster) => cluster.validate(),
    }
}

/// The services of the TLS port: identities, health and reflection.
fn routes(
    service: Service,
    dubbo: DubboService,
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
    routes.add_service(service.into_server()).add_service(dubbo.into_server()).add_service(health);
    // The descriptors are compiled in; without them there is only no reflection.
    match tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(rulecast_api::proto::DESCRIPTORS)
        .with_service_name("rulecast.identity.v1.IdentityService")
        .with_service_name("dubbo.apache.org.v1alpha1.AuthorityService")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lives_are_checked() {
        let config = |ttl, max_ttl| CaConfig {
            place: Place::Folder("ca".into()),
            listen: ([127, 0, 0, 1], 0).into(),
            http: None,
            ttl: Duration::from_secs(ttl),
            max_ttl: Duration::from_secs(max_ttl),
            drain: Duration::ZERO,
            dubbo: DubboConfig::default(),
        };
        validate(&config(3600, 86_400)).expect("the defaults");
        for (ttl, max_ttl) in [(0, 3600), (3600, 60), (60, 86_401)] {
            let error = validate(&config(ttl, max_ttl)).expect_err("refused");
            assert_eq!(error.code(), Code::ConfigInvalid);
        }
    }
}
