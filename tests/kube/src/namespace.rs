//! A namespace per test.

use std::{
    fmt,
    ops::Deref,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::Result;
use k8s_openapi::{
    api::core::v1::Namespace as Object, apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{Api, api::PostParams};

use crate::{Cluster, binaries, pki};

/// Kinds that say nothing about a test, or too much.
const NOT_SHOWN: [&str; 1] = ["secrets"];

/// A namespace that no other test has. It stays when this is dropped: without a controller
/// manager a deleted one would not go. Dropped in a panic, it shows what is in it.
pub struct Namespace {
    name: String,
    cluster: Cluster,
}

impl Cluster {
    /// Makes a namespace whose name begins so.
    pub async fn namespace(&self, prefix: &str) -> Result<Namespace> {
        self.labelled_namespace(prefix, &[]).await
    }

    /// As [`Cluster::namespace`], with labels from the beginning.
    pub async fn labelled_namespace(
        &self,
        prefix: &str,
        labels: &[(&str, &str)],
    ) -> Result<Namespace> {
        let name = format!("{prefix}-{}", hex::encode(pki::random::<5>()?));
        let labels = labels.iter().map(|(key, value)| (key.to_string(), value.to_string()));
        let metadata = ObjectMeta {
            name: Some(name.clone()),
            labels: Some(labels.collect()),
            ..ObjectMeta::default()
        };
        let object = Object { metadata, ..Object::default() };
        let api: Api<Object> = Api::all(self.client());
        api.create(&PostParams::default(), &object).await?;
        Ok(Namespace { name, cluster: self.clone() })
    }
}

impl Namespace {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// All that is in it but Secrets, as YAML, or why it cannot be had. Blocks.
    pub fn dump(&self) -> String {
        dump(&self.cluster.kubeconfig(), &self.name)
    }
}

impl Deref for Namespace {
    type Target = str;

    fn deref(&self) -> &str {
        &self.name
    }
}

impl AsRef<std::ffi::OsStr> for Namespace {
    fn as_ref(&self) -> &std::ffi::OsStr {
        self.name.as_ref()
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl fmt::Debug for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Namespace({})", self.name)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("what was in namespace {}:\n{}", self.name, self.dump());
        }
    }
}

/// All objects of a namespace as YAML, or why they cannot be had.
fn dump(kubeconfig: &Path, namespace: &str) -> String {
    let kinds =
        ["api-resources", "--namespaced", "--verbs=list", "--cached=false", "--output=name"];
    let kinds = kubectl(kubeconfig, &kinds);
    let kinds: Vec<&str> = kinds
        .lines()
        .filter(|kind| !kind.contains([' ', ':']) && !NOT_SHOWN.contains(kind))
        // The same events under their second name.
        .filter(|kind| *kind != "events.events.k8s.io")
        .collect();
    let kinds = if kinds.is_empty() { "all,events".to_owned() } else { kinds.join(",") };
    let get = ["get", &kinds, "--namespace", namespace, "--ignore-not-found", "--output=yaml"];
    kubectl(kubeconfig, &get)
}

/// What kubectl says, on both outputs. Blocks: for use where nothing can be awaited.
fn kubectl(kubeconfig: &Path, arguments: &[&str]) -> String {
    let program = match binaries::kubectl() {
        Ok(program) => program,
        Err(error) => return format!("{error:#}"),
    };
    let output = Command::new(program)
        .args(arguments)
        // The server may be what failed.
        .arg("--request-timeout=10s")
        .env("KUBECONFIG", kubeconfig)
        .env("KUBECACHEDIR", kubeconfig.with_file_name("cache"))
        .stdin(Stdio::null())
        .output();
    match output {
        Ok(output) => {
            let (out, err) = (&output.stdout, &output.stderr);
            format!("{}{}", String::from_utf8_lossy(out), String::from_utf8_lossy(err))
        }
        Err(error) => format!("kubectl: {error}"),
    }
}
