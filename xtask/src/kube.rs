//! The API server that tests use; see hack/kube-apiserver and tests/kube.

use std::{
    env,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
};

use anyhow::{Context, Result, ensure};

use crate::test::{cargo, succeeds};

/// Tells tests where the run's server is: the folder with its files.
pub(crate) const SERVER: &str = "RULECAST_TEST_KUBE";

/// What turns the tests on that need it.
pub(crate) const FEATURES: &str =
    "rulecast-kube-tests/kube,rulecast/kube-tests,rulecast-sdk/reqwest";

const PROGRAM: &str = "test-kube";

/// Runs a server in the foreground until it is interrupted.
pub(crate) fn run(root: &Path) -> Result<()> {
    if !is_built(root) {
        build(root)?;
    }
    let args = ["build", "--quiet", "--package", "rulecast-kube-tests", "--bin", PROGRAM];
    ensure!(cargo(root).args(args).status()?.success(), "building {PROGRAM} failed");
    eprintln!("starting; for the shell that runs tests or kubectl:");
    // It holds our end of the pipe, and ends when that does.
    let mut server = Command::new(program()?).stdin(Stdio::piped()).spawn()?;
    let _input = server.stdin.take();
    ensure!(server.wait()?.success(), "the server ended; see above");
    Ok(())
}

/// Whether the programs of the server are on this machine.
pub(crate) fn is_built(root: &Path) -> bool {
    succeeds(script(root).arg("--check"))
}

/// Builds them; what it does is shown on standard error.
pub(crate) fn build(root: &Path) -> Result<()> {
    let status = script(root).stdin(Stdio::null()).stdout(Stdio::null()).status()?;
    ensure!(status.success(), "hack/kube-apiserver failed; run it again, it goes on where it was");
    Ok(())
}

fn script(root: &Path) -> Command {
    let mut command = Command::new(root.join("hack/kube-apiserver"));
    command.current_dir(root);
    command
}

/// Beside this program, where cargo puts those of a build.
fn program() -> Result<PathBuf> {
    Ok(env::current_exe()?.with_file_name(PROGRAM))
}

/// A server for a run of tests. Dropped, it ends, and so it does when this process ends in
/// any other way.
pub(crate) struct Server {
    child: Child,
    input: Option<ChildStdin>,
    folder: String,
}

impl Server {
    /// Starts `beside`'s neighbour, which must be built, and waits until it is ready.
    pub(crate) fn start(beside: &Path) -> Result<Self> {
        let program = beside.with_file_name(PROGRAM);
        let mut child = Command::new(&program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("running {}", program.display()))?;
        let input = child.stdin.take();
        let output = child.stdout.take().context("its output is ours")?;
        let mut server = Self { child, input, folder: String::new() };
        let start = format!("export {SERVER}=");
        for line in BufReader::new(output).lines() {
            if let Some(folder) = line?.strip_prefix(&start) {
                server.folder = folder.to_owned();
                break;
            }
        }
        ensure!(!server.folder.is_empty(), "the server did not start; see above");
        Ok(server)
    }

    /// What [`SERVER`] has to say.
    pub(crate) fn folder(&self) -> &str {
        &self.folder
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.wait();
    }
}
