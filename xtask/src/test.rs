//! Everything that a change must pass, in one command.

use std::{
    env,
    ffi::OsString,
    fs::{self, File},
    io::{self, Write},
    path::Path,
    process::{Command, Stdio},
    time::Instant,
};

use anyhow::{Context, Result, bail};

use crate::kube;

const TARGET: &str = "wasm32-unknown-unknown";

/// Components of the toolchain that a step needs, with the cargo command that tells
/// whether they are there.
const COMPONENTS: [(&str, &str); 2] = [("rustfmt", "fmt"), ("clippy", "clippy")];

/// Whether all of it passed. The last line printed has the counts of the tests.
pub(crate) fn run(root: &Path) -> Result<bool> {
    // Resolved now: building the tests may put another file in its place.
    let xtask = env::current_exe()?;
    let mut steps = Steps { root, failed: Vec::new() };

    steps.step("set-up", || set_up(root))?;
    steps.cargo("format", &["fmt", "--all", "--check"])?;
    steps.cargo(
        "clippy",
        &[
            "clippy",
            "--workspace",
            // Its peers take longer to check than all the rest; the soak does it.
            "--exclude",
            "rulecast-bench",
            "--all-targets",
            "--all-features",
            "--keep-going",
            "--quiet",
            "--",
            "-D",
            "warnings",
        ],
    )?;
    for task in ["protos", "policies"] {
        steps.command(task, Command::new(&xtask).args([task, "--check"]))?;
    }

    steps.step("kube", || build_kube(root))?;

    let nextest = succeeds(cargo(root).args(["nextest", "--version"]));
    let run: &[&str] = if nextest { &["nextest", "run"] } else { &["test", "--no-fail-fast"] };
    // With the programs that the end-to-end tests start: cargo builds those of a package
    // before its tests.
    let mut build = cargo(root);
    // The benchmarks have no tests, and bring large peers.
    let everything = ["--workspace", "--exclude", "rulecast-bench", "--features", kube::FEATURES];
    build.args(run).args(everything).arg("--no-run");
    let mut counts = None;
    if steps.command("build", &mut build)?.passed {
        let server = start_kube(&mut steps, &xtask)?;
        let mut tests = cargo(root);
        tests.args(run).args(everything);
        if let Some(server) = &server {
            tests.env(kube::SERVER, server.folder());
        }
        if nextest {
            tests.args(["--no-fail-fast", "--status-level", "fail"]);
        } else {
            // Doc tests have their own step.
            tests.args(["--lib", "--bins", "--tests"]);
        }
        let output = steps.command("tests", &mut tests)?.output;
        counts = if nextest { nextest_summary(&output) } else { cargo_summary(&output) };
        drop(server);
        let mut docs = cargo(root);
        docs.args(["test", "--doc", "--quiet"]).args(everything);
        let docs = steps.command("doc tests", &mut docs)?;
        if let Some(summary) = cargo_summary(&docs.output) {
            println!("doc tests: {summary}");
        }
    }

    if !steps.failed.is_empty() {
        println!("FAILED: {}", steps.failed.join(", "));
    }
    println!("{}", counts.as_deref().unwrap_or("no test was run"));
    Ok(steps.failed.is_empty())
}

/// How a step ended.
struct Outcome {
    passed: bool,
    output: String,
}

/// Runs steps one after the other, a line for each, and goes on when one fails: what is
/// wrong is told in one run.
struct Steps<'a> {
    root: &'a Path,
    failed: Vec<String>,
}

impl Steps<'_> {
    fn step(&mut self, name: &str, body: impl FnOnce() -> Result<Outcome>) -> Result<Outcome> {
        print!("{name:<10} ");
        io::stdout().flush()?;
        let since = Instant::now();
        let outcome = body().with_context(|| format!("step {name}"))?;
        let seconds = since.elapsed().as_secs_f64();
        if outcome.passed {
            println!("ok      {seconds:>6.1} s");
        } else {
            println!("FAILED  {seconds:>6.1} s\n{}", outcome.output.trim_end());
            self.failed.push(name.to_owned());
        }
        Ok(outcome)
    }

    fn command(&mut self, name: &str, command: &mut Command) -> Result<Outcome> {
        command.current_dir(self.root);
        self.step(name, || capture(command))
    }

    fn cargo(&mut self, name: &str, args: &[&str]) -> Result<Outcome> {
        let mut command = cargo(self.root);
        self.command(name, command.args(args))
    }
}

/// Installs what the pinned toolchain lacks, and what the client in Python takes.
fn set_up(root: &Path) -> Result<Outcome> {
    let mut output = String::new();
    let found = Command::new("rustc").current_dir(root).args(["--print", "sysroot"]).output();
    let sysroot = String::from_utf8(found.context("running rustc")?.stdout)?;
    if !Path::new(sysroot.trim()).join("lib/rustlib").join(TARGET).is_dir() {
        output += &rustup(root, &["target", "add", TARGET])?;
    }
    for (component, command) in COMPONENTS {
        if !succeeds(cargo(root).args([command, "--version"])) {
            output += &rustup(root, &["component", "add", component])?;
        }
    }
    // Where cargo lets tests keep files. They would make it themselves, on the time of a test.
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), Into::into);
    let python = root.join("tests/compat/setup");
    let python = capture(Command::new(python).current_dir(root).arg(target.join("tmp")))?;
    output += &python.output;
    Ok(Outcome { passed: python.passed, output })
}

/// Sees to it that the programs of the API server are there. Building them takes minutes, so
/// what it does is shown.
fn build_kube(root: &Path) -> Result<Outcome> {
    let done = || Outcome { passed: true, output: String::new() };
    if kube::is_built(root) {
        return Ok(done());
    }
    println!("builds kube-apiserver, once; later runs find it");
    let outcome = match kube::build(root) {
        Ok(()) => done(),
        Err(error) => Outcome { passed: false, output: format!("{error:#}") },
    };
    print!("{:<10} ", "");
    Ok(outcome)
}

/// One API server for all tests, unless one is there. Where it does not start, the tests run
/// all the same; those that need it start one each, or say why not.
fn start_kube(steps: &mut Steps<'_>, xtask: &Path) -> Result<Option<kube::Server>> {
    if env::var_os(kube::SERVER).is_some() {
        return Ok(None);
    }
    let mut server = None;
    steps.step("api server", || match kube::Server::start(xtask) {
        Ok(started) => {
            server = Some(started);
            Ok(Outcome { passed: true, output: String::new() })
        }
        Err(error) => Ok(Outcome { passed: false, output: format!("{error:#}") }),
    })?;
    Ok(server)
}

fn rustup(root: &Path, args: &[&str]) -> Result<String> {
    let line = format!("rustup {}", args.join(" "));
    let outcome =
        capture(Command::new("rustup").current_dir(root).args(args)).with_context(|| {
            format!("`{line}` is needed; without rustup, install what it names by other means")
        })?;
    if !outcome.passed {
        bail!("`{line}` failed:\n{}", outcome.output);
    }
    Ok(outcome.output)
}

/// Cargo, without what the cargo that runs this task has set for it alone: build scripts
/// would see it change and build anew.
pub(crate) fn cargo(root: &Path) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    command.current_dir(root);
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    command
}

/// Runs quietly; whether it went well.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Runs with standard output and error in one file, so that their lines keep their order.
fn capture(command: &mut Command) -> Result<Outcome> {
    let log = tempfile::NamedTempFile::new()?;
    let sink = File::options().append(true).open(log.path())?;
    let status = command
        .stdin(Stdio::null())
        .stdout(sink.try_clone()?)
        .stderr(sink)
        .status()
        .with_context(|| format!("running {command:?}"))?;
    let output = String::from_utf8_lossy(&fs::read(log.path())?).into_owned();
    Ok(Outcome { passed: status.success(), output })
}

/// The line in which nextest counts: `Summary [   1.0s] 3 tests run: 3 passed, 0 skipped`.
fn nextest_summary(output: &str) -> Option<String> {
    let line = output.lines().map(str::trim).rfind(|line| line.starts_with("Summary ["))?;
    Some(line.to_owned())
}

/// The counts of all test programs that cargo ran, as one line of the form that each prints.
fn cargo_summary(output: &str) -> Option<String> {
    let (mut passed, mut failed, mut ignored, mut any) = (0, 0, 0, false);
    for line in output.lines() {
        let Some(counts) = line.trim().strip_prefix("test result: ") else { continue };
        any = true;
        for count in counts.split([';', '.']) {
            let Some((number, what)) = count.trim().split_once(' ') else { continue };
            let Ok(number) = number.parse::<u64>() else { continue };
            match what {
                "passed" => passed += number,
                "failed" => failed += number,
                "ignored" => ignored += number,
                _ => {}
            }
        }
    }
    let verdict = if failed == 0 { "ok" } else { "FAILED" };
    any.then(|| {
        format!("test result: {verdict}. {passed} passed; {failed} failed; {ignored} ignored")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries_are_found_and_added() {
        let nextest = "  PASS x\n     Summary [   1.250s] 3 tests run: 3 passed, 0 skipped\n";
        assert_eq!(
            nextest_summary(nextest).as_deref(),
            Some("Summary [   1.250s] 3 tests run: 3 passed, 0 skipped")
        );
        let cargo = "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.31s\n\
                     test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out\n";
        assert_eq!(
            cargo_summary(cargo).as_deref(),
            Some("test result: FAILED. 14 passed; 1 failed; 1 ignored")
        );
        assert_eq!(cargo_summary("error: could not compile"), None);
    }

    #[test]
    fn output_is_captured_in_order() {
        let mut shell = Command::new("sh");
        let outcome = capture(shell.args(["-c", "echo a; echo b >&2; echo c; exit 3"]));
        let outcome = outcome.expect("sh runs");
        assert!(!outcome.passed);
        assert_eq!(outcome.output, "a\nb\nc\n");
    }
}
