use std::{fs, path::PathBuf};

use super::*;
use crate::Authority;

struct Site {
    _parent: tempfile::TempDir,
    dir: PathBuf,
    authority: AuthorityHandle,
    identity: IdentityHandle,
}

async fn keeper(life: Duration) -> (Site, Keeper) {
    let parent = tempfile::tempdir().expect("folder");
    let dir = parent.path().join("ca");
    crate::init(&dir, "td.example").expect("made");
    let mut source = Source::Folder(dir.clone());
    let opened: Authority = source.open().await.expect("opens");
    let (identity, identity_updater) = IdentityHandle::new(opened.own_svid(life).expect("own"));
    let (authority, authority_updater) = AuthorityHandle::new(opened);
    let keeper = Keeper {
        source,
        authority: authority.clone(),
        authority_updater,
        identity: identity.clone(),
        identity_updater,
        metrics: Metrics::default(),
    };
    (Site { _parent: parent, dir, authority, identity }, keeper)
}

#[tokio::test]
async fn the_own_certificate_is_renewed_in_place() {
    let (site, keeper) = keeper(OWN_LIFE).await;
    let first = site.identity.current();
    keeper.renew_own().expect("renewed");
    let second = site.identity.current();
    assert_eq!(second.spiffe, first.spiffe);
    assert_ne!(second.chain[0], first.chain[0]);
}

#[tokio::test]
async fn it_keeps_its_own_certificate_until_shutdown() {
    let (site, keeper) = keeper(Duration::from_secs(2)).await;
    let end = site.identity.current().not_after;
    let mut changes = site.identity.subscribe();
    // Its own certificate does not wait for the folder.
    fs::remove_dir_all(&site.dir).expect("removed");
    let shutdown = CancellationToken::new();
    let task = tokio::spawn(keeper.keep(Readiness::new(), shutdown.clone()));
    let renewed = tokio::time::timeout(Duration::from_secs(20), changes.changed());
    renewed.await.expect("in time").expect("the keeper runs");
    assert!(site.identity.current().not_after > end);
    shutdown.cancel();
    task.await.expect("no panic").expect("ends well");
}

#[tokio::test]
async fn a_folder_is_read_again_only_when_the_intermediate_is_due() {
    let (site, mut keeper) = keeper(OWN_LIFE).await;
    let before = site.authority.current();
    fs::remove_dir_all(&site.dir).expect("removed");
    assert!(!keeper.look().await.expect("nothing to do"));
    assert!(before.is_same(&site.authority.current()));
}
