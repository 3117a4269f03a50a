//! kubectl, the real one.

use std::{
    ffi::OsStr,
    path::Path,
    process::{ExitStatus, Stdio},
};

use anyhow::{Context, Result, ensure};
use tokio::{io::AsyncWriteExt, process::Command};

use crate::binaries;

/// What a program left when it ended.
#[derive(Clone, Debug)]
pub struct Output {
    /// How it ended.
    pub status: ExitStatus,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

impl Output {
    /// Standard output, or an error that tells what it said instead.
    pub fn success(self) -> Result<String> {
        ensure!(self.status.success(), "kubectl: {}: {}{}", self.status, self.stdout, self.stderr);
        Ok(self.stdout)
    }
}

/// Runs it with a kubeconfig, which `--kubeconfig` among the arguments would replace.
pub(crate) async fn run<S: AsRef<OsStr>>(
    kubeconfig: &Path,
    arguments: &[S],
    input: &str,
) -> Result<Output> {
    let mut command = Command::new(binaries::kubectl()?);
    command
        .args(arguments)
        .env("KUBECONFIG", kubeconfig)
        // Not the person's own.
        .env("KUBECACHEDIR", kubeconfig.with_file_name("cache"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let mut child = command.spawn().context("running kubectl")?;
    let stdin = child.stdin.take();
    let feed = async {
        if let Some(mut stdin) = stdin {
            // It may end without reading; its status tells more.
            let _ = stdin.write_all(input.as_bytes()).await;
        }
    };
    let (output, ()) = tokio::join!(child.wait_with_output(), feed);
    let output = output?;
    Ok(Output {
        status: output.status,
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}
