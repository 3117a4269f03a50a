//! The project's CRDs on a test server.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
    runtime::{conditions::is_crd_established, wait::await_condition},
};
use serde_json::Value;
use tokio::time::timeout;

use crate::Cluster;

/// CEL rules in schemas; servers know them from 1.25 on, and older ones do not take a CRD
/// with them.
const CEL: &str = "x-kubernetes-validations";
const CEL_SINCE: u32 = 25;

const ESTABLISHED: Duration = Duration::from_secs(60);

impl Cluster {
    /// Applies crds/*.yaml and waits until the server serves the kinds; once per server,
    /// whoever asks. For a server before 1.25 without the CEL rules.
    pub async fn apply_crds(&self) -> Result<()> {
        let files = files(&crds_folder())?;
        let mut content = String::new();
        for file in &files {
            content += &fs::read_to_string(file)?;
        }
        // One process at a time; the lock goes with the file.
        let lock = self.folder().join("crds.lock");
        let _lock = tokio::task::spawn_blocking(move || {
            let file = File::options().create(true).append(true).open(lock)?;
            file.lock().map(|()| file)
        })
        .await??;
        let done = self.folder().join("crds.done");
        if fs::read_to_string(&done).is_ok_and(|before| before == content) {
            return Ok(());
        }
        let mut names = Vec::new();
        for file in &files {
            for crd in self.parse(file).await? {
                names.push(self.apply_crd(crd).await?);
            }
        }
        for name in &names {
            self.served(name).await.with_context(|| format!("waiting for {name}"))?;
        }
        Ok(fs::write(done, content)?)
    }

    /// Applies one CRD, as JSON, without waiting. Returns its name.
    pub async fn apply_crd(&self, mut crd: Value) -> Result<String> {
        if self.minor_version().await? < CEL_SINCE {
            strip(&mut crd);
        }
        let name = crd["metadata"]["name"].as_str().context("a CRD without a name")?.to_owned();
        let api: Api<CustomResourceDefinition> = Api::all(self.client());
        let params = PatchParams::apply("rulecast-tests").force();
        let applied = api.patch(&name, &params, &Patch::Apply(&crd)).await;
        Ok(applied.with_context(|| format!("applying {name}"))?.name_any())
    }

    /// The project's CRDs as JSON, as they are in crds/.
    pub async fn crds(&self) -> Result<Vec<Value>> {
        let mut crds = Vec::new();
        for file in files(&crds_folder())? {
            crds.extend(self.parse(&file).await?);
        }
        Ok(crds)
    }

    /// The second number of the server's version.
    pub async fn minor_version(&self) -> Result<u32> {
        let version = self.client().apiserver_version().await?;
        // Some vendors write "20+".
        let minor = version.minor.trim_end_matches('+');
        minor.parse().with_context(|| format!("the server's minor version is {minor}"))
    }

    /// YAML as kubectl reads it.
    async fn parse(&self, file: &Path) -> Result<Vec<Value>> {
        let path = file.display().to_string();
        let arguments =
            ["create", "--dry-run=client", "--validate=false", "--output=json", "-f", &path];
        let json = self.kubectl(&arguments).await?.success()?;
        let objects = serde_json::Deserializer::from_str(&json).into_iter();
        Ok(objects.collect::<Result<_, _>>()?)
    }

    /// Waits until the server answers for a CRD's kind.
    pub async fn served(&self, name: &str) -> Result<()> {
        let api: Api<CustomResourceDefinition> = Api::all(self.client());
        let waiting = async {
            let crd = await_condition(api, name, is_crd_established()).await?;
            let spec = crd.context("the CRD is gone")?.spec;
            for version in spec.versions.iter().filter(|version| version.served) {
                let url =
                    format!("/apis/{}/{}/{}?limit=1", spec.group, version.name, spec.names.plural);
                // Its own handler hears of it a little later.
                loop {
                    let request = http::Request::get(&url).body(Vec::new())?;
                    match self.client().request_text(request).await {
                        Ok(_) => break,
                        Err(kube::Error::Api(status)) if status.code == 404 => {
                            tokio::time::sleep(Duration::from_millis(20)).await;
                        }
                        Err(error) => return Err(error.into()),
                    }
                }
            }
            anyhow::Ok(())
        };
        timeout(ESTABLISHED, waiting).await.context("the kind is not served")?
    }
}

fn crds_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crds")
}

fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let mut files = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "yaml") {
            files.push(path);
        }
    }
    files.sort();
    ensure!(!files.is_empty(), "no CRD in {}", folder.display());
    Ok(files)
}

/// Takes the CEL rules out, at every depth.
fn strip(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.remove(CEL);
            members.values_mut().for_each(strip);
        }
        Value::Array(items) => items.iter_mut().for_each(strip),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rules_are_stripped_at_every_depth() {
        let mut schema = json!({
            "x-kubernetes-validations": [{ "rule": "a" }],
            "properties": { "spec": { "allOf": [{ "type": "x", "x-kubernetes-validations": [] }] } },
        });
        strip(&mut schema);
        let bare = json!({ "properties": { "spec": { "allOf": [{ "type": "x" }] } } });
        assert_eq!(schema, bare);
    }
}
