//! A plane that is killed in a burst: clients converge to the folder, and hold
//! nothing that never was in it.

use std::{
    collections::BTreeMap,
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use anyhow::{Context, Result, ensure};
use rulecast_api::{Digest, kind::KINDS, manifest};
use rulecast_dds::{
    index::Index,
    scope::{Owners, Root},
    store::{self, Event, Origin, Stored, Version},
    views::{Debounce, Views},
};
use rulecast_sdk::{client::Client, status::Status};

use crate::site::{Site, eventually, rule};

const DOCUMENTS: usize = 40;
const CHANGES: usize = 1_000;

fn condition(version: usize) -> String {
    format!("method=m{version} => region=r{version}")
}

/// Key and digest under which the plane delivers a document: what its own views say.
fn delivered(views: &Views, text: &str) -> Result<(String, Digest)> {
    let parsed =
        manifest::parse(KINDS, text.as_bytes(), manifest::Format::of("a.yaml").context("format")?);
    let document = parsed.documents.into_iter().next().context("a document")?;
    let resource = document.outcome.map_err(|problems| anyhow::anyhow!("refused: {problems:?}"))?;
    let id = resource.id.clone();
    let digest = store::digest(&resource);
    let origin = Origin { file: "a.yaml".into(), line: 1 };
    let revision = views.index().snapshot().revision + 1;
    let stored =
        Stored { resource, revision, digest, origin, accepted: true, version: Version::default() };
    views.index().apply(vec![Event::Upsert(stored)]);
    views.refresh();
    let item = views.item(&id).context("it is delivered")?;
    Ok((item.key.clone(), item.digest))
}

/// What a client may hold of each key, oldest first.
type History = BTreeMap<String, Vec<Digest>>;

/// Follows a client and checks every state that it sees.
async fn follow(client: Client, history: Arc<History>, stop: Arc<AtomicBool>) -> Result<usize> {
    let mut changes = client.changes();
    let (mut at, mut revisions, mut states) = (BTreeMap::new(), BTreeMap::new(), 0);
    let mut check = |status: &Status| -> Result<()> {
        for kind in &status.kinds {
            let before = revisions.insert(kind.type_name.clone(), kind.revision).unwrap_or(0);
            ensure!(
                kind.revision >= before,
                "{}: revision {before} -> {}",
                kind.type_name,
                kind.revision
            );
            for (key, digest) in &kind.rules {
                let versions = history.get(key).with_context(|| format!("{key} never was"))?;
                let version = versions
                    .iter()
                    .position(|known| *known == digest.0)
                    .with_context(|| format!("{key}: {} never was in the folder", digest.0))?;
                let last = at.insert(key.clone(), version).unwrap_or(0);
                ensure!(version >= last, "{key} went back from version {last} to {version}");
            }
        }
        states += 1;
        Ok(())
    };
    while !stop.load(Ordering::Acquire) {
        let status = changes.borrow_and_update().clone();
        check(&status)?;
        if changes.changed().await.is_err() {
            break;
        }
    }
    Ok(states)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plane_killed_in_a_burst_converges_to_the_folder() -> Result<()> {
    let mut site = Site::start().await?;
    let mut history = History::new();
    let texts: Vec<(String, String)> = (0..CHANGES)
        .map(|change| {
            let (name, version) = (format!("d{}", change % DOCUMENTS), change / DOCUMENTS);
            let text = rule(&name, version as i32, &condition(version));
            (format!("{name}.yaml"), text)
        })
        .collect();
    let views = Views::new(
        Index::new(KINDS, "test".into()),
        Owners::default(),
        Root::default(),
        Debounce::default(),
    );
    for (_, text) in &texts {
        let (key, digest) = delivered(&views, text)?;
        history.entry(key).or_default().push(digest);
    }
    let history = Arc::new(history);
    let stop = Arc::new(AtomicBool::new(false));
    let mut clients = Vec::new();
    let mut followers = Vec::new();
    for at in 0..3 {
        let client = site.client(&format!("burst-{at}"))?.connect().await?;
        followers.push(tokio::spawn(follow(client.clone(), history.clone(), stop.clone())));
        clients.push(client);
    }

    let (before, after) = texts.split_at(CHANGES * 6 / 10);
    for (file, text) in before {
        site.write_rule(file, text)?;
    }
    site.kill_plane().await?;
    for (file, text) in after {
        site.write_rule(file, text)?;
    }
    site.start_plane().await?;

    let wanted: BTreeMap<String, Digest> = history
        .iter()
        .filter_map(|(key, versions)| Some((key.clone(), *versions.last()?)))
        .collect();
    ensure!(fs::read_dir(site.path("rules"))?.count() == DOCUMENTS, "the folder is as written");
    for client in &clients {
        eventually(async || {
            let status = client.status();
            let held: BTreeMap<String, Digest> = status
                .kinds
                .iter()
                .flat_map(|kind| &kind.rules)
                .map(|(key, digest)| (key.clone(), digest.0))
                .collect();
            ensure!(
                held == wanted,
                "{} of {} rules are as in the folder",
                held.len(),
                wanted.len()
            );
            Ok(())
        })
        .await
        .with_context(|| site.logs())?;
    }
    eventually(async || {
        let status = site.status().await?;
        for rule in &status.rules {
            ensure!((rule.matched, rule.applied, rule.rejected) == (3, 3, 0), "{rule:?}");
        }
        ensure!(status.rules.len() == DOCUMENTS, "{} rules", status.rules.len());
        Ok(())
    })
    .await?;
    stop.store(true, Ordering::Release);
    for client in clients {
        client.shutdown().await;
    }
    for follower in followers {
        let states =
            tokio::time::timeout(crate::site::LIMIT, follower).await??.context("follower")?;
        ensure!(states > 1, "the client was seen in {states} states");
    }
    Ok(())
}
