//! How a server is reached: what lies in its folder.

use std::{
    fs,
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU32, Ordering},
};

use anyhow::{Context, Result};
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};

/// Who an account is for the server.
pub(crate) enum Credential<'a> {
    /// This token.
    Token(&'a str),
    /// The token in a file, which clients read again.
    File(&'a Path),
}

/// The folder of a server that runs.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    folder: PathBuf,
}

impl Access {
    pub(crate) fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned() }
    }

    /// Writes what clients need. `ca` is PEM.
    pub(crate) fn create(folder: &Path, url: &str, ca: &str, token: &str) -> Result<Self> {
        let access = Self::new(folder);
        access.set_ca(ca)?;
        fs::write(folder.join("url"), url)?;
        fs::create_dir_all(folder.join("clients"))?;
        access.write_kubeconfig(&access.kubeconfig(), url, "admin", &Credential::Token(token))?;
        Ok(access)
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(crate) fn url(&self) -> Result<String> {
        fs::read_to_string(self.folder.join("url"))
            .with_context(|| format!("{} holds no test server", self.folder.display()))
    }

    pub(crate) fn ca_file(&self) -> PathBuf {
        self.folder.join("ca.crt")
    }

    /// Replaces the authority's certificate in one step.
    pub(crate) fn set_ca(&self, pem: &str) -> Result<()> {
        let fresh = self.folder.join("ca.crt.new");
        fs::write(&fresh, pem)?;
        Ok(fs::rename(fresh, self.ca_file())?)
    }

    /// The administrator's kubeconfig.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.folder.join("kubeconfig")
    }

    /// A folder of its own for a client's files; it goes with the server's.
    pub(crate) fn client_folder(&self, name: &str) -> Result<PathBuf> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = self.folder.join(format!("clients/{name}-{}-{count}", process::id()));
        fs::create_dir_all(&folder)?;
        Ok(folder)
    }

    /// Writes a kubeconfig that refers to the authority's file.
    pub(crate) fn write_kubeconfig(
        &self,
        to: &Path,
        url: &str,
        user: &str,
        credential: &Credential<'_>,
    ) -> Result<()> {
        let credential = match credential {
            Credential::Token(token) => json!({ "token": token }),
            Credential::File(file) => json!({ "tokenFile": file }),
        };
        let config = kubeconfig(url, &self.ca_file(), user, &credential);
        fs::write(to, format!("{config:#}\n")).with_context(|| to.display().to_string())
    }

    /// A kubeconfig like another, with another address of the server.
    pub(crate) fn kubeconfig_at(&self, like: &Path, url: &str) -> Result<PathBuf> {
        let mut config: Value = serde_json::from_slice(&fs::read(like)?)?;
        config["clusters"][0]["cluster"]["server"] = url.into();
        let to = self.client_folder("moved")?.join("kubeconfig");
        fs::write(&to, format!("{config:#}\n"))?;
        Ok(to)
    }

    /// A client for the runtime that calls, as the administrator.
    pub(crate) async fn client(&self) -> Result<kube::Client> {
        client(&self.kubeconfig()).await
    }
}

/// A plain client, for the runtime that calls.
pub(crate) async fn client(kubeconfig: &Path) -> Result<kube::Client> {
    let file = Kubeconfig::read_from(kubeconfig)?;
    let options = KubeConfigOptions::default();
    let config = kube::Config::from_custom_kubeconfig(file, &options).await?;
    Ok(kube::Client::try_from(config)?)
}

/// JSON, which is YAML too.
fn kubeconfig(url: &str, ca: &Path, user: &str, credential: &Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{ "name": "test", "cluster": { "server": url, "certificate-authority": ca } }],
        "users": [{ "name": user, "user": credential }],
        "contexts": [{ "name": "test", "context": { "cluster": "test", "user": user } }],
    })
}
