//! What a kubelet does for a container, as far as trust goes: the environment that the
//! admitted pod says, and its volumes as files. There is no kubelet beside the API server.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Container, Pod, Volume};
use kube::{Api, Client};
use rulecast_kube_tests::Cluster;
use tempfile::TempDir;

/// A container's view of the world. Paths of mounts are moved into a folder of the test.
pub(crate) struct Sandbox {
    pub(crate) pod: Pod,
    env: BTreeMap<String, String>,
    folder: TempDir,
}

impl Sandbox {
    /// Of the first container of an admitted pod.
    pub(crate) async fn new(cluster: &Cluster, pod: Pod) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let mut sandbox = Self { pod, env: BTreeMap::new(), folder };
        let spec = sandbox.pod.spec.clone().context("a pod without spec")?;
        let container = spec.containers.first().context("a pod without containers")?.clone();
        for volume in spec.volumes.iter().flatten() {
            for mount in container.volume_mounts.iter().flatten() {
                if mount.name == volume.name {
                    ensure!(mount.read_only == Some(true), "{} is not read-only", mount.name);
                    sandbox.mount(cluster, volume, &mount.mount_path).await?;
                }
            }
        }
        sandbox.environment(&container)?;
        Ok(sandbox)
    }

    /// A variable of the container.
    pub(crate) fn var(&self, name: &str) -> Option<String> {
        self.env.get(name).cloned()
    }

    /// All of its variables.
    pub(crate) fn env(&self) -> &BTreeMap<String, String> {
        &self.env
    }

    fn namespace(&self) -> &str {
        self.pod.metadata.namespace.as_deref().unwrap_or("default")
    }

    /// Where a path of the container lies in the test's folder.
    fn inside(&self, path: &str) -> PathBuf {
        self.folder.path().join(path.trim_start_matches('/'))
    }

    async fn mount(&self, cluster: &Cluster, volume: &Volume, path: &str) -> Result<()> {
        let at = self.inside(path);
        fs::create_dir_all(&at)?;
        if let Some(source) = &volume.config_map {
            config_map(&cluster.client(), self.namespace(), &source.name, &at).await?;
        }
        for source in volume.projected.iter().flat_map(|p| p.sources.iter().flatten()) {
            if let Some(source) = &source.config_map {
                config_map(&cluster.client(), self.namespace(), &source.name, &at).await?;
            }
            if let Some(token) = &source.service_account_token {
                let meta = &self.pod.metadata;
                let name = meta.name.as_deref().context("a pod without name")?;
                let uid = meta.uid.as_deref().context("a pod without uid")?;
                let account = self
                    .pod
                    .spec
                    .as_ref()
                    .and_then(|spec| spec.service_account_name.as_deref())
                    .unwrap_or("default");
                let audience = token.audience.as_deref().context("a token without audience")?;
                let seconds = u32::try_from(token.expiration_seconds.unwrap_or(3600))?;
                let text = cluster
                    .token(self.namespace(), account, audience, Some((name, uid)), seconds)
                    .await?;
                fs::write(at.join(&token.path), text)?;
            }
        }
        Ok(())
    }

    fn environment(&mut self, container: &Container) -> Result<()> {
        for var in container.env.iter().flatten() {
            let field = var
                .value_from
                .as_ref()
                .and_then(|from| from.field_ref.as_ref())
                .map(|field| field.field_path.as_str());
            let value = match (field, &var.value) {
                (Some("metadata.name"), _) => self.pod.metadata.name.clone(),
                (Some("metadata.namespace"), _) => self.pod.metadata.namespace.clone(),
                (Some("spec.serviceAccountName"), _) => {
                    self.pod.spec.as_ref().and_then(|spec| spec.service_account_name.clone())
                }
                (Some(label), _) if label.starts_with("metadata.labels['") => {
                    let name = label.trim_start_matches("metadata.labels['");
                    let labels = self.pod.metadata.labels.as_ref();
                    labels.and_then(|l| l.get(name.trim_end_matches("']")).cloned())
                }
                (Some(other), _) => bail!("{}: unknown field {other}", var.name),
                (None, value) => value.clone(),
            };
            let value = value.unwrap_or_default();
            // What names a file of a mount names it where it really is.
            let file = self.inside(&value);
            let there = value.starts_with('/') && file.exists();
            let value = if there { file.to_string_lossy().into_owned() } else { value };
            self.env.insert(var.name.clone(), value);
        }
        Ok(())
    }
}

async fn config_map(client: &Client, namespace: &str, name: &str, at: &Path) -> Result<()> {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    // A kubelet waits until it is there.
    let map = super::site::eventually(async || Ok(api.get(name).await?)).await?;
    for (name, text) in map.data.iter().flatten() {
        fs::write(at.join(name), text)?;
    }
    Ok(())
}
