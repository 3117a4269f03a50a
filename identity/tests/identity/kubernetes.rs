//! A pod's identity: by token and roots that are replaced on disk, over real TLS.

use std::{
    fs,
    path::PathBuf,
    sync::{Arc, atomic::Ordering},
    time::{Duration, SystemTime},
};

use crate::support::{Authority, HOUR, Server, Service};
use rulecast_api::Code;
use rulecast_identity::{
    ClientAuth, ConnectOptions, Expected, IdentityConfig, IdentityError, IdentityHandle,
    IdentityManager, IdentityStatus, IdentityUpdater, ServeOptions, Svid, TokenSource, connect,
    manager::RENEWAL_GRACE, tls,
};
use tokio::{sync::watch, time::timeout};

const LONG: Duration = Duration::from_secs(20);

/// An authority that knows one token, and a pod with token and roots as files.
struct Site {
    authority: Arc<Authority>,
    service: Arc<Service>,
    server: Server,
    server_identity: IdentityUpdater,
    files: tempfile::TempDir,
}

impl Site {
    async fn new() -> Self {
        let authority = Authority::new("a.test");
        let service = Service::new(&authority, "shop");
        let (identity, server_identity) =
            IdentityHandle::new(authority.svid(&authority.service("rulecast-ca")));
        let clients = ClientAuth::Optional { grace: RENEWAL_GRACE };
        let config = tls::server_config(&identity, clients, None).expect("config");
        let server = Server::start(config, service.clone(), ServeOptions::default()).await;
        let files = tempfile::tempdir().expect("folder");
        let site = Self { authority, service, server, server_identity, files };
        site.know("first", "web");
        site.write("token", "first\n");
        site.write("ca.crt", &site.authority.pem());
        site
    }

    /// From now on the API server vouches for a token.
    fn know(&self, token: &str, account: &str) {
        let account = self.authority.account(account);
        self.service.accounts.lock().expect("lock").insert(token.into(), account);
    }

    fn forget(&self, token: &str) {
        self.service.accounts.lock().expect("lock").remove(token);
    }

    fn path(&self, name: &str) -> PathBuf {
        self.files.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        // As the kubelet does: one or the other, never half.
        fs::write(self.path("new"), text).expect("written");
        fs::rename(self.path("new"), self.path(name)).expect("renamed");
    }

    /// The authority begins anew, with another root.
    fn another_root(&self) -> Arc<Authority> {
        let new = Authority::new("a.test");
        *self.service.authority.lock().expect("lock") = new.clone();
        self.server_identity.replace(new.svid(&new.service("rulecast-ca")));
        new
    }

    fn config(&self) -> IdentityConfig {
        IdentityConfig {
            token: Some(TokenSource::Kubernetes {
                token: self.path("token"),
                bundle: self.path("ca.crt"),
            }),
            // The application is a label of the pod; the identity names its service account.
            application: Some("shop".into()),
            namespace: Some("default".into()),
            ..IdentityConfig::new(self.server.address.clone())
        }
    }

    fn calls(&self) -> usize {
        self.service.calls.load(Ordering::SeqCst)
    }

    /// How the last caller that was let in showed itself.
    fn last_peer(&self) -> Option<String> {
        let peers = self.service.peers.lock().expect("lock");
        peers.last().cloned().flatten().map(|peer| peer.spiffe.to_string())
    }
}

async fn start(config: IdentityConfig) -> Result<IdentityHandle, IdentityError> {
    let (handle, worker) = timeout(LONG, IdentityManager::start(config)).await.expect("in time")?;
    tokio::spawn(worker);
    Ok(handle)
}

async fn fails(status: &mut watch::Receiver<IdentityStatus>, code: Code) {
    let failed = status.wait_for(|s| s.last_error.as_ref().is_some_and(|e| e.code() == code));
    timeout(LONG, failed).await.expect("in time").expect("runs");
}

async fn next(handle: &IdentityHandle, before: &Arc<Svid>) -> Arc<Svid> {
    let mut changes = handle.subscribe();
    let changed = timeout(LONG, changes.wait_for(|svid| !Arc::ptr_eq(svid, before))).await;
    changed.expect("in time").expect("runs").clone()
}

#[tokio::test]
async fn a_pod_joins_by_its_token_and_keeps_its_key_in_memory() {
    let site = Site::new().await;
    let state = site.path("state");
    let config = IdentityConfig { state_dir: Some(state.clone()), ..site.config() };
    let handle = start(config).await.expect("joins");
    assert_eq!(handle.current().spiffe.to_string(), site.authority.account("web"));
    assert_eq!(handle.bundle().trust_domain(), "a.test");
    assert_eq!(site.last_peer(), None, "no certificate was there to show");
    assert!(!state.exists(), "nothing is kept on disk");

    let elsewhere = IdentityConfig { namespace: Some("prod".into()), ..site.config() };
    let refused = start(elsewhere).await.expect_err("another namespace");
    assert_eq!(refused.code(), Code::OtherApplication);
    for (name, code) in [("token", Code::CredentialMissing), ("ca.crt", Code::PeerUntrusted)] {
        let kept = fs::read_to_string(site.path(name)).expect("reads");
        fs::remove_file(site.path(name)).expect("removes");
        let config = site.config();
        let mut status = config.status.subscribe();
        let attempt = tokio::spawn(start(config));
        fails(&mut status, code).await;
        let message = status.borrow().last_error.clone().expect("error").message().to_owned();
        assert!(message.contains(&*site.path(name).to_string_lossy()), "{message}");
        site.write(name, &kept);
        // A missing token is final, roots may yet come.
        assert_eq!(attempt.await.expect("runs").is_ok(), code == Code::PeerUntrusted, "{name}");
    }
}

#[tokio::test]
async fn a_refused_token_and_strange_roots_are_waited_out() {
    let site = Site::new().await;
    let stranger = Authority::new("a.test");
    site.write("ca.crt", &stranger.pem());
    site.write("token", "old");
    let config = site.config();
    let mut status = config.status.subscribe();
    let attempt = tokio::spawn(start(config));
    fails(&mut status, Code::PeerUntrusted).await;
    assert_eq!(site.calls(), 0, "the token is not sent to whom the roots do not know");
    site.write("ca.crt", &format!("{}{}", stranger.pem(), site.authority.pem()));
    fails(&mut status, Code::ServiceAccountToken).await;
    let shown = format!("{:?}", *status.borrow());
    assert!(!shown.contains("old"), "{shown}");
    site.write("token", "first");
    let handle = attempt.await.expect("runs").expect("joins");
    assert_eq!(handle.current().spiffe.to_string(), site.authority.account("web"));
}

#[tokio::test]
async fn renewal_is_by_certificate_and_joining_mends_what_it_cannot() {
    let site = Site::new().await;
    *site.service.ttl.lock().expect("lock") = Duration::from_secs(4);
    let config = site.config();
    let mut status = config.status.subscribe();
    let handle = start(config).await.expect("joins");
    let first = handle.current();
    // While the certificate is good, the token is not needed.
    site.forget("first");
    let second = next(&handle, &first).await;
    assert_eq!(site.last_peer(), Some(site.authority.account("web")), "by mutual TLS");
    // The authority takes the certificate no more, and no token yet.
    site.service.refuses_renewals.store(true, Ordering::SeqCst);
    fails(&mut status, Code::ServiceAccountToken).await;
    site.know("second", "web");
    site.write("token", "second");
    let third = next(&handle, &second).await;
    assert_eq!((site.last_peer(), &third.spiffe), (None, &first.spiffe));
    site.service.refuses_renewals.store(false, Ordering::SeqCst);
    // The token's service account is another's: never another identity under a running one.
    site.know("second", "cart");
    site.service.refuses_renewals.store(true, Ordering::SeqCst);
    fails(&mut status, Code::OtherApplication).await;
    assert_eq!(handle.current().spiffe, first.spiffe);
}

#[tokio::test]
async fn a_certificate_that_ended_meanwhile_is_joined_for_anew() {
    let site = Site::new().await;
    *site.service.ttl.lock().expect("lock") = Duration::from_secs(2);
    let config = site.config();
    let mut status = config.status.subscribe();
    let handle = start(config).await.expect("joins");
    let first = handle.current();
    site.service.down.store(true, Ordering::SeqCst);
    fails(&mut status, Code::AuthorityUnreachable).await;
    let ended = async {
        while SystemTime::now() <= first.not_after + Duration::from_secs(1) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(LONG, ended).await.expect("the clock goes on");
    assert!(Arc::ptr_eq(&first, &handle.current()));
    *site.service.ttl.lock().expect("lock") = HOUR;
    site.know("second", "web");
    site.forget("first");
    site.write("token", "second");
    site.service.down.store(false, Ordering::SeqCst);
    let second = next(&handle, &first).await;
    assert_eq!(site.last_peer(), None, "no grace for service accounts: by token");
    assert!(second.is_valid_at(SystemTime::now()) && second.spiffe == first.spiffe);
    assert_eq!(status.borrow().last_error, None);
}

#[tokio::test]
async fn a_new_root_in_the_file_is_followed_at_once() {
    let site = Site::new().await;
    // Renewal would be due in an hour.
    *site.service.renew_before_end.lock().expect("lock") = Some(Duration::from_secs(1));
    let handle = start(site.config()).await.expect("joins");
    let first = handle.current();
    let calls = site.calls();
    // The same roots again, or fewer of them, are no news.
    site.write("ca.crt", &format!("# again\n{}", site.authority.pem()));
    let new = site.another_root();
    let both = format!("{}{}", site.authority.pem(), new.pem());
    site.write("ca.crt", &both);
    let second = next(&handle, &first).await;
    assert_eq!(second.bundle.roots(), std::slice::from_ref(&new.root));
    assert_eq!(second.spiffe, first.spiffe);
    assert_eq!(site.last_peer(), None, "the old certificate proves nothing to the new root");
    // Nothing is asked again for the same content.
    let mut status = handle.subscribe();
    status.borrow_and_update();
    let quiet = timeout(Duration::from_millis(600), status.changed()).await;
    assert!(quiet.is_err() && site.calls() == calls + 1, "{} calls", site.calls());
}

#[tokio::test]
async fn roots_name_the_authority_and_nobody_else() {
    let site = Site::new().await;
    let root = site.authority.root.clone();
    let twin = Authority::new("a.test");
    for (roots, expected, result) in [
        (vec![root.clone()], Expected::authority(), Ok("a.test")),
        (vec![twin.root.clone(), root.clone()], Expected::authority(), Ok("a.test")),
        (vec![twin.root.clone()], Expected::authority(), Err(Code::PeerUntrusted)),
        (vec![root.clone()], Expected::dds(), Err(Code::PeerIdentity)),
    ] {
        let (config, met) = tls::rooted_contact_config(roots, expected).expect("config");
        let tried = connect(&site.server.address, config, &ConnectOptions::default()).await;
        match result {
            Ok(domain) => assert_eq!((tried.is_ok(), met.get()), (true, Some(domain))),
            Err(code) => {
                assert_eq!(tried.expect_err("refused").code(), code);
                assert_eq!(met.get(), None);
            }
        }
    }
    // An application that calls itself the authority.
    site.server_identity.replace(site.authority.svid(&site.authority.id("rulecast-ca")));
    let config = site.config();
    let mut status = config.status.subscribe();
    let attempt = tokio::spawn(start(config));
    fails(&mut status, Code::PeerIdentity).await;
    assert_eq!(site.calls(), 0);
    attempt.abort();
    // The authority itself, with an answer of another trust domain.
    let stranger = Authority::new("b.test");
    site.server_identity.replace(site.authority.svid(&site.authority.service("rulecast-ca")));
    *site.service.authority.lock().expect("lock") = stranger;
    let config = site.config();
    let mut status = config.status.subscribe();
    let attempt = tokio::spawn(start(config));
    fails(&mut status, Code::PeerTrustDomain).await;
    attempt.abort();
}
