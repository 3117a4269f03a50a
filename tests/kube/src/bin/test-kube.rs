//! Runs a test server until it is interrupted, or its standard input ends: `cargo xtask kube`
//! and `cargo xtask test` start it.

use std::io;

use anyhow::Result;
use rulecast_kube_tests::{Cluster, SHARED_ENV};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::oneshot,
};

#[tokio::main]
async fn main() -> Result<()> {
    let (mut interrupt, mut terminate) =
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let serving = async {
        let cluster = Cluster::start().await?;
        println!("export KUBECONFIG={}", cluster.kubeconfig().display());
        // The last line: whoever waits for it need not read on.
        println!("export {SHARED_ENV}={}", cluster.folder().display());
        let _ = input_ends().await;
        anyhow::Ok(())
    };
    tokio::select! {
        ended = serving => ended,
        _ = interrupt.recv() => Ok(()),
        _ = terminate.recv() => Ok(()),
    }
}

/// On a thread of its own, which the end of the process ends too.
fn input_ends() -> oneshot::Receiver<()> {
    let (ended, input_ends) = oneshot::channel();
    std::thread::spawn(move || {
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        let _ = ended.send(());
    });
    input_ends
}
