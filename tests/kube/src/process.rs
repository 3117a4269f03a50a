//! Programs that end with the test, whatever becomes of it.

use std::{
    fs::{self, File},
    io,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, ExitStatus, Stdio},
};

use anyhow::{Context, Result};

/// Writes its process id before it becomes the program, so that the keeper knows every
/// program there is: where the folder is gone already, nothing starts.
const STARTER: &str = r#"echo $$ >"$0" && exec "$@""#;

/// Waits for the end of its input, which comes with the end of the process that holds the
/// other side, also when that was killed; then ends the programs and removes the folder.
/// Moves the folder away first: a program that is just about to start finds none.
const KEEPER: &str = r#"
trap '' INT TERM HUP
cat >/dev/null
mv "$0" "$0.gone" || exit 0
for file in "$0.gone"/*.pid; do
  if [ -e "$file" ]; then kill -KILL "$(cat "$file")"; fi
done
rm -rf "$0.gone" || { sleep 2; rm -rf "$0.gone"; }
"#;

/// A folder of a server, and who cleans up after it.
#[derive(Debug)]
pub(crate) struct Keeper {
    folder: PathBuf,
    keeper: Child,
    input: Option<ChildStdin>,
}

impl Keeper {
    /// Makes a folder and watches over it.
    pub(crate) fn new() -> Result<Self> {
        // The keeper removes it, also after a kill, so it is not the temporary folder's to do.
        let folder = tempfile::Builder::new().prefix("rulecast-kube-").tempdir()?.keep();
        let mut keeper = Command::new("sh")
            .args(["-c", KEEPER])
            .arg(&folder)
            .current_dir("/")
            // Apart from the group that an interrupt or a runner's time limit ends.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("running sh")?;
        let input = keeper.stdin.take();
        Ok(Self { folder, keeper, input })
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.keeper.wait();
    }
}

/// A program that runs.
#[derive(Debug)]
pub(crate) struct Program {
    child: Child,
    pid_file: PathBuf,
    log: PathBuf,
}

impl Program {
    /// Starts it, with its output in `NAME.log` in the keeper's folder.
    pub(crate) fn start(
        folder: &Path,
        name: &str,
        program: &Path,
        args: &[String],
        env: &[(&str, &str)],
    ) -> Result<Self> {
        let pid_file = folder.join(format!("{name}.pid"));
        let log = folder.join(format!("{name}.log"));
        let sink = File::options().create(true).append(true).open(&log)?;
        let child = Command::new("sh")
            .args(["-c", STARTER])
            .arg(&pid_file)
            .arg(program)
            .args(args)
            .envs(env.iter().copied())
            .current_dir(folder)
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(sink.try_clone()?)
            .stderr(sink)
            .spawn()
            .with_context(|| format!("running {}", program.display()))?;
        Ok(Self { child, pid_file, log })
    }

    /// How it ended; `None` while it runs.
    pub(crate) fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// The process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The end of what it has written.
    pub(crate) fn tail(&self, lines: usize) -> String {
        tail(&self.log, lines)
    }
}

impl Drop for Program {
    /// Kills it and waits for its end: its ports are free afterwards.
    fn drop(&mut self) {
        let _ = self.child.kill();
        // Before it is waited for: afterwards the id may be another's.
        let _ = fs::remove_file(&self.pid_file);
        let _ = self.child.wait();
    }
}

/// The last lines of a file; of one that is not there, that.
pub(crate) fn tail(path: &Path, lines: usize) -> String {
    match fs::read(path) {
        Ok(bytes) => {
            let text = String::from_utf8_lossy(&bytes);
            let all: Vec<&str> = text.lines().collect();
            all[all.len().saturating_sub(lines)..].join("\n")
        }
        Err(error) => format!("({}: {error})", path.display()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn sleep(folder: &Path, name: &str) -> Program {
        let args = ["-c".into(), "echo up; exec sleep 600".into()];
        Program::start(folder, name, Path::new("/bin/sh"), &args, &[]).expect("sh starts")
    }

    /// Waits, at most ten seconds.
    fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
        let since = Instant::now();
        while !holds() {
            assert!(since.elapsed() < Duration::from_secs(10), "{what}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn programs_end_with_their_owner() {
        let keeper = Keeper::new().expect("keeper");
        let folder = keeper.folder().to_owned();
        let program = sleep(&folder, "one");
        eventually("it runs", || program.tail(1) == "up");
        let proc = PathBuf::from(format!("/proc/{}", program.id()));
        assert!(proc.exists());
        drop(program);
        assert!(!proc.exists(), "killed and waited for");
        drop(keeper);
        assert!(!folder.exists(), "removed");
    }

    #[test]
    fn the_keeper_ends_programs_whose_owner_is_gone() {
        let keeper = Keeper::new().expect("keeper");
        let folder = keeper.folder().to_owned();
        let mut program = sleep(&folder, "one");
        eventually("it runs", || program.tail(1) == "up");
        // As after a kill: the pipe closes, and nobody else did anything.
        drop(keeper);
        eventually("it ends", || program.ended().expect("status").is_some());
        assert!(!folder.exists(), "removed");
        let late = Program::start(&folder, "two", Path::new("/bin/true"), &[], &[]);
        assert!(late.is_err(), "nothing starts without its folder");
    }
}
