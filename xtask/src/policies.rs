//! Builds the built-in policies into `wasm-policies/dist`, the same bytes on every machine.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail, ensure};
use sha2::{Digest, Sha256};

const TARGET: &str = "wasm32-unknown-unknown";

struct Policy {
    package: &'static str,
    file: &'static str,
    manifest: &'static str,
}

const POLICIES: &[Policy] = &[
    Policy {
        package: "rulecast-affinity-route",
        file: "affinity_route.wasm",
        manifest: concat!(
            r#"{"abi":1,"phase":"route","name":"affinity-route","version":"0.1.0","#,
            r#""scratch":131072,"attributes":["consumer[*]"]}"#
        ),
    },
    Policy {
        package: "rulecast-authentication-policy",
        file: "authentication_policy.wasm",
        manifest: concat!(
            r#"{"abi":1,"phase":"authenticate","name":"authentication-policy","version":"0.1.0","#,
            r#""scratch":65536,"attributes":["destination.port"]}"#
        ),
    },
    Policy {
        package: "rulecast-authorization-policy",
        file: "authorization_policy.wasm",
        manifest: concat!(
            r#"{"abi":1,"phase":"authorize","name":"authorization-policy","version":"0.1.0","#,
            r#""scratch":131072,"attributes":["method","path","source.principal","#,
            r#""source.namespace","source.ip","source.application","request.id","#,
            r#""request.headers[*]","destination.port","destination.application","#,
            r#""extension[*]","draw"]}"#
        ),
    },
    Policy {
        package: "rulecast-condition-route",
        file: "condition_route.wasm",
        manifest: concat!(
            r#"{"abi":1,"phase":"route","name":"condition-route","version":"0.1.0","#,
            r#""scratch":131072,"attributes":["method","arguments[*]","attachments[*]","#,
            r#""consumer[*]","draw"]}"#
        ),
    },
    Policy {
        package: "rulecast-tag-route",
        file: "tag_route.wasm",
        manifest: concat!(
            r#"{"abi":1,"phase":"route","name":"tag-route","version":"0.1.0","#,
            r#""scratch":131072,"attributes":["attachments[dubbo.tag]","consumer[dubbo.tag]","#,
            r#""attachments[dubbo.force.tag]","consumer[dubbo.force.tag]"]}"#
        ),
    },
    Policy {
        package: "rulecast-dynamic-config",
        file: "dynamic_config.wasm",
        manifest: concat!(
            r#"{"abi":1,"phase":"mutate","name":"dynamic-config","version":"0.1.0","#,
            r#""scratch":131072,"attributes":["service","consumer[*]"]}"#
        ),
    },
    Policy {
        package: "rulecast-rate-limit",
        file: "rate_limit.wasm",
        manifest: concat!(
            r#"{"abi":1,"phase":"limit","name":"rate-limit","version":"0.1.0","#,
            r#""scratch":131072,"attributes":["method","path","source.principal","#,
            r#""source.namespace","source.ip","source.application","request.id","#,
            r#""request.headers[*]","destination.port","destination.application","#,
            r#""extension[*]"]}"#
        ),
    },
];

pub(crate) fn run(root: &Path, check: bool) -> Result<()> {
    let sysroot = output(Command::new("rustc").current_dir(root).args(["--print", "sysroot"]))?;
    if !Path::new(&sysroot).join("lib/rustlib").join(TARGET).is_dir() {
        let status = Command::new("rustup")
            .current_dir(root)
            .args(["target", "add", TARGET])
            .status()
            .context("running rustup, which installs the target")?;
        ensure!(status.success(), "rustup target add {TARGET} failed");
    }
    let target = root.join("target/policies");
    let dist = root.join("wasm-policies/dist");
    fs::create_dir_all(&dist)?;
    for policy in POLICIES {
        let status = Command::new(env!("CARGO"))
            .current_dir(root)
            .args(["build", "--quiet", "--locked", "--lib", "--profile", "policy"])
            .args(["--target", TARGET, "--package", policy.package, "--target-dir"])
            .arg(&target)
            // What the outer cargo set for itself is not for this build.
            .env_remove("RUSTFLAGS")
            .env_remove("CARGO_BUILD_RUSTFLAGS")
            .env_remove("CARGO_BUILD_TARGET")
            .env("CARGO_ENCODED_RUSTFLAGS", remaps(root, &sysroot)?)
            .status()?;
        ensure!(status.success(), "building {} failed", policy.package);
        let library = format!("{}.wasm", policy.package.replace('-', "_"));
        let built = target.join(TARGET).join("policy").join(library);
        let mut bytes = fs::read(&built).with_context(|| built.display().to_string())?;
        append_section(&mut bytes, "rulecast.manifest", policy.manifest.as_bytes());
        let path = dist.join(policy.file);
        let same = fs::read(&path).is_ok_and(|old| old == bytes);
        if check && !same {
            let rebuilt = target.join(policy.file);
            fs::write(&rebuilt, &bytes)?;
            bail!(
                "{} is not what its source builds to ({}); run cargo xtask policies",
                path.display(),
                rebuilt.display()
            );
        }
        if !same {
            fs::write(&path, &bytes)?;
        }
        println!(
            "{} {} bytes sha256:{}",
            policy.file,
            bytes.len(),
            hex::encode(Sha256::digest(&bytes))
        );
    }
    Ok(())
}

/// Folders that would else stand in the module: panic locations carry paths.
fn remaps(root: &Path, sysroot: &str) -> Result<String> {
    let cargo_home = match std::env::var_os("CARGO_HOME") {
        Some(home) => PathBuf::from(home),
        None => std::env::home_dir().context("no home folder")?.join(".cargo"),
    };
    let mut pairs = vec![
        (cargo_home.display().to_string(), "/cargo"),
        (sysroot.to_owned(), "/rust"),
        (root.display().to_string(), "/rulecast"),
    ];
    // The folder's name says which registry or mirror the sources came from. The last
    // mapping that fits is taken.
    if let Ok(registries) = fs::read_dir(cargo_home.join("registry/src")) {
        for registry in registries {
            pairs.push((registry?.path().display().to_string(), "/registry"));
        }
    }
    let mut flags: Vec<String> =
        pairs.iter().map(|(from, to)| format!("--remap-path-prefix={from}={to}")).collect();
    // Copies of a few bytes are loops in the module: as bulk instructions each of them leaves
    // it for the host.
    flags.push("-Ctarget-feature=-bulk-memory".to_owned());
    Ok(flags.join("\x1f"))
}

fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("running {command:?}"))?;
    ensure!(output.status.success(), "{command:?} failed");
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

fn append_section(module: &mut Vec<u8>, name: &str, payload: &[u8]) {
    let mut body = Vec::new();
    leb(&mut body, name.len());
    body.extend_from_slice(name.as_bytes());
    body.extend_from_slice(payload);
    module.push(0);
    leb(module, body.len());
    module.extend_from_slice(&body);
}

fn leb(out: &mut Vec<u8>, mut value: usize) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}
