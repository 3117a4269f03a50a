//! Starting, stopping, and what is missing meanwhile.

use std::{fs, process::Stdio};

use anyhow::{Context, Result, ensure};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::site::{LIMIT, RULECAST, Site, eventually, terminate};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plane_restarts_without_its_token() -> Result<()> {
    let mut site = Site::start().await?;
    site.stop_plane().await?;
    fs::remove_file(site.path("dds.token"))?;
    site.start_plane().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plane_whose_certificate_has_ended_is_not_ready() -> Result<()> {
    let mut site = Site::start_with(&["--ttl", "4s"]).await?;
    site.stop_authority().await?;
    eventually(async || {
        let status = site.status().await?;
        let named = status.blockers.iter().any(|blocker| blocker.starts_with("identity:"));
        ensure!(!status.ready && named, "{status:?}");
        Ok(())
    })
    .await
}

/// A probe that never ends its request must not hold the process up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_half_sent_probe_does_not_hold_up_the_stop() -> Result<()> {
    let mut site = Site::start().await?;
    let mut half = TcpStream::connect(site.http).await?;
    half.write_all(b"GET /readyz HTTP/1.1\r\nHost:").await?;
    // Connections are accepted in order: when this one is answered, the other is being read.
    let mut whole = TcpStream::connect(site.http).await?;
    whole.write_all(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n").await?;
    let mut answer = [0; 12];
    whole.read_exact(&mut answer).await?;
    ensure!(&answer == b"HTTP/1.1 200", "{answer:?}");
    site.stop_plane().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_demo_stopped_at_its_start_leaves_nothing() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (scratch, here) = (dir.path().join("tmp"), dir.path().join("here"));
    fs::create_dir(&scratch)?;
    fs::create_dir(&here)?;
    let mut demo = tokio::process::Command::new(RULECAST)
        .arg("demo")
        .current_dir(&here)
        .env("TMPDIR", &scratch)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    eventually(async || {
        ensure!(fs::read_dir(&scratch)?.next().is_some(), "nothing has begun");
        Ok(())
    })
    .await?;
    terminate(&demo)?;
    tokio::time::timeout(LIMIT, demo.wait()).await.context("it does not stop")??;
    let left: Vec<_> = fs::read_dir(&scratch)?.collect();
    ensure!(left.is_empty(), "{left:?} is left");
    Ok(())
}
