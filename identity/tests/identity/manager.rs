//! Getting an identity and keeping it, against an authority over real TLS.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    sync::{Arc, atomic::Ordering},
    time::{Duration, SystemTime},
};

use crate::support::{Authority, HOUR, Server, Service};
use rulecast_api::Code;
use rulecast_identity::{
    ClientAuth, IdentityConfig, IdentityError, IdentityHandle, IdentityManager, ServeOptions,
    TokenSource, manager::RENEWAL_GRACE, state::StateDir, tls,
};
use tokio::time::timeout;

const LONG: Duration = Duration::from_secs(20);

async fn authority() -> (Arc<Authority>, Arc<Service>, Server) {
    let authority = Authority::new("a.test");
    let identity = authority.identity(&authority.service("rulecast-ca"));
    let config = tls::server_config(&identity, ClientAuth::Optional { grace: RENEWAL_GRACE }, None);
    let service = Service::new(&authority, "shop");
    let server =
        Server::start(config.expect("config"), service.clone(), ServeOptions::default()).await;
    (authority, service, server)
}

fn config(server: &Server, authority: &Authority, dir: Option<&Path>) -> IdentityConfig {
    IdentityConfig {
        token: Some(TokenSource::Text(authority.token().to_text().to_string())),
        state_dir: dir.map(Into::into),
        namespace: Some("default".into()),
        application: Some("shop".into()),
        ..IdentityConfig::new(server.address.clone())
    }
}

async fn start(config: IdentityConfig) -> Result<IdentityHandle, IdentityError> {
    let (handle, worker) = timeout(LONG, IdentityManager::start(config)).await.expect("in time")?;
    tokio::spawn(worker);
    Ok(handle)
}

async fn refused(config: IdentityConfig) -> Code {
    start(config).await.expect_err("refused").code()
}

#[tokio::test]
async fn joins_keeps_and_finds_again() {
    let (authority, service, server) = authority().await;
    let dir = tempfile::tempdir().expect("dir");
    let state = dir.path().join("state");
    let first = start(config(&server, &authority, Some(&state))).await.expect("joins");
    assert_eq!(first.current().spiffe.to_string(), authority.id("shop"));
    for (name, mode) in [("identity.pem", 0o600), ("bundle.pem", 0o600), (".", 0o700)] {
        let meta = fs::metadata(state.join(name)).expect(name);
        assert_eq!(meta.permissions().mode() & 0o777, mode, "{name}");
    }
    assert!(!state.join("join-key.pem").exists());
    let calls = service.calls.load(Ordering::SeqCst);
    drop(server);
    // Without an authority, and without a token.
    let (_, _, elsewhere) = self::authority().await;
    let again = IdentityConfig { token: None, ..config(&elsewhere, &authority, Some(&state)) };
    let again = start(again).await.expect("is kept");
    assert_eq!(again.current().chain, first.current().chain);
    assert_eq!(again.current().renew_at, first.current().renew_at);
    assert_eq!(service.calls.load(Ordering::SeqCst), calls);
}

#[tokio::test]
async fn a_lost_answer_is_asked_for_with_the_same_key_even_after_a_restart() {
    let (authority, service, server) = authority().await;
    let dir = tempfile::tempdir().expect("dir");
    service.loses_answers.store(true, Ordering::SeqCst);
    let mut waiting = config(&server, &authority, Some(dir.path()));
    let mut status = waiting.status.subscribe();
    waiting.connect.connect_timeout = LONG;
    let attempt = tokio::spawn(start(waiting));
    let lost = status.wait_for(|s| s.last_error.is_some());
    timeout(LONG, lost).await.expect("in time").expect("manager is there");
    attempt.abort();
    service.loses_answers.store(false, Ordering::SeqCst);
    let handle = start(config(&server, &authority, Some(dir.path()))).await.expect("joins");
    let keys = service.keys.lock().expect("lock");
    assert!(keys.len() >= 2 && keys.iter().all(|key| *key == keys[0]));
    assert_eq!(handle.current().key.public_key(), keys[0]);
}

#[tokio::test]
async fn renews_at_half_life_and_keeps_the_valid_one_while_the_authority_is_down() {
    let (authority, service, server) = authority().await;
    *service.ttl.lock().expect("lock") = Duration::from_secs(6);
    let dir = tempfile::tempdir().expect("dir");
    let with_status = config(&server, &authority, Some(dir.path()));
    let mut status = with_status.status.subscribe();
    let handle = start(with_status).await.expect("joins");
    let first = handle.current();
    service.down.store(true, Ordering::SeqCst);
    let failed = timeout(LONG, status.wait_for(|s| s.last_error.is_some())).await;
    let error = failed.expect("in time").expect("runs").last_error.clone().expect("error");
    assert_eq!(error.code(), Code::AuthorityUnreachable);
    assert!(Arc::ptr_eq(&first, &handle.current()), "the valid one is kept");
    assert!(SystemTime::now() < first.not_after, "asked well before the end");
    service.down.store(false, Ordering::SeqCst);
    *service.ttl.lock().expect("lock") = HOUR;
    let mut changes = handle.subscribe();
    let renewed = timeout(LONG, changes.wait_for(|s| !Arc::ptr_eq(s, &first))).await;
    let renewed = renewed.expect("in time").expect("runs").clone();
    assert_ne!(renewed.key.public_key(), first.key.public_key(), "a new key each time");
    let last = service.peers.lock().expect("lock").last().cloned().flatten();
    assert_eq!(last.expect("by mutual TLS").spiffe, first.spiffe);
    assert_eq!(status.borrow().last_error, None);
    let stored = StateDir::open(dir.path()).expect("opens").load().expect("loads");
    assert_eq!(stored.expect("is there").chain, renewed.chain);
}

#[tokio::test]
async fn an_expired_certificate_is_renewed_within_a_day() {
    let (authority, service, server) = authority().await;
    let dir = tempfile::tempdir().expect("dir");
    let state = StateDir::open(dir.path()).expect("opens");
    let now = SystemTime::now();
    let old = authority.svid_between(&authority.id("shop"), now - 3 * HOUR, now - 2 * HOUR);
    state.store(&old).expect("stores");
    let without = IdentityConfig { token: None, ..config(&server, &authority, Some(dir.path())) };
    let handle = start(without.clone()).await.expect("renews");
    assert!(handle.current().is_valid_at(SystemTime::now()));
    let shown = service.peers.lock().expect("lock").pop().flatten().expect("by mutual TLS");
    assert_eq!(shown.not_after, old.not_after);

    let older = authority.svid_between(&authority.id("shop"), now - 30 * HOUR, now - 25 * HOUR);
    state.store(&older).expect("stores");
    assert_eq!(refused(without).await, Code::PeerExpired);
    start(config(&server, &authority, Some(dir.path()))).await.expect("joins anew");
    assert!(service.peers.lock().expect("lock").pop().flatten().is_none(), "by token");
}

#[tokio::test]
async fn what_is_not_ours_is_refused() {
    let (authority, _, server) = authority().await;
    let dir = tempfile::tempdir().expect("dir");
    let of = |name: &str, dir: Option<&Path>| IdentityConfig {
        application: Some(name.into()),
        ..config(&server, &authority, dir)
    };
    assert_eq!(refused(of("cart", None)).await, Code::OtherApplication, "token of another");
    start(of("shop", Some(dir.path()))).await.expect("joins");
    assert_eq!(refused(of("cart", Some(dir.path()))).await, Code::OtherApplication);
    let elsewhere = IdentityConfig {
        namespace: Some("prod".into()),
        ..config(&server, &authority, Some(dir.path()))
    };
    assert_eq!(refused(elsewhere).await, Code::OtherApplication);

    let key = dir.path().join("identity.pem");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o640)).expect("chmod");
    assert_eq!(refused(of("shop", Some(dir.path()))).await, Code::KeyPermissions);
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("chmod");
    fs::write(&key, "# damaged").expect("writes");
    let without = IdentityConfig { token: None, ..of("shop", Some(dir.path())) };
    assert_eq!(refused(without).await, Code::IdentityState);
    start(of("shop", Some(dir.path()))).await.expect("a token mends a damaged folder");

    let twin = Authority::new("a.test");
    assert_eq!(refused(config(&server, &twin, None)).await, Code::PeerUntrusted);
    let stranger = Authority::new("b.test");
    assert_eq!(refused(config(&server, &stranger, None)).await, Code::PeerUntrusted);
    let garbage =
        IdentityConfig { token: Some(TokenSource::Text("rcjt1.xyz".into())), ..of("shop", None) };
    assert_eq!(refused(garbage).await, Code::TokenInvalid);
    let missing = IdentityConfig {
        token: Some(TokenSource::File(dir.path().join("no-token"))),
        ..of("shop", None)
    };
    assert_eq!(refused(missing).await, Code::CredentialMissing);
}

#[test]
fn damaged_files_never_panic_and_never_pass() {
    let authority = Authority::new("a.test");
    let dir = tempfile::tempdir().expect("dir");
    let state = StateDir::open(dir.path()).expect("opens");
    state.store(&authority.svid(&authority.id("shop"))).expect("stores");
    let whole = state.load().expect("loads").expect("is there");
    for name in ["identity.pem", "bundle.pem"] {
        let path = dir.path().join(name);
        let good = fs::read(&path).expect("reads");
        for at in (0..good.len()).step_by(7) {
            let mut bad = good.clone();
            bad[at] ^= 0x15;
            fs::write(&path, &bad).expect("writes");
            // What still loads is the same identity: notes and line ends do not matter.
            if let Ok(Some(svid)) = state.load() {
                assert_eq!(svid.chain[0], whole.chain[0], "{name} at {at}");
            }
            fs::write(&path, &good[..at]).expect("writes");
            assert!(
                state.load().ok().flatten().is_none_or(|svid| svid.chain[0] == whole.chain[0]),
                "{name} cut at {at}"
            );
        }
        fs::write(&path, &good).expect("writes");
    }
    let other = Authority::new("a.test");
    fs::write(dir.path().join("bundle.pem"), other.bundle().to_pem()).expect("writes");
    assert_eq!(state.load().expect_err("another root").code(), Code::IdentityState);
}
