//! Where the configuration comes from, and the files that it stands on.

use std::{
    env,
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
};

use kube::config::{AuthInfo, Kubeconfig, KubeconfigError};
use rustls::pki_types::{CertificateDer, pem::PemObject as _};

use crate::{ClusterConfig, ClusterError};

/// Where a pod finds its service account.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// The longest file of credentials that is read, in bytes.
const FILE_LIMIT: u64 = 4 << 20;

/// Where the configuration comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// Files of kubeconfig, merged; the first one wins.
    Kubeconfig { files: Vec<PathBuf>, context: Option<String> },
    /// A pod's service account.
    Pod { url: String, folder: PathBuf },
}

/// What of the process decides about the source.
#[derive(Clone, Debug, Default)]
pub(super) struct Environment {
    /// `KUBECONFIG`.
    pub(super) kubeconfig: Option<OsString>,
    /// `HOME`.
    pub(super) home: Option<PathBuf>,
    /// `KUBERNETES_SERVICE_HOST`.
    pub(super) host: Option<String>,
    /// `KUBERNETES_SERVICE_PORT`.
    pub(super) port: Option<String>,
    /// The folder of the service account.
    pub(super) folder: PathBuf,
}

impl Environment {
    /// That of this process.
    pub(super) fn of_process() -> Self {
        Self {
            kubeconfig: env::var_os("KUBECONFIG"),
            home: env::home_dir(),
            host: env::var("KUBERNETES_SERVICE_HOST").ok().filter(|v| !v.is_empty()),
            port: env::var("KUBERNETES_SERVICE_PORT").ok().filter(|v| !v.is_empty()),
            folder: SERVICE_ACCOUNT.into(),
        }
    }
}

/// A configuration, and what was in the files that it was made of.
#[derive(Debug)]
pub(super) struct Loaded {
    /// The configuration.
    pub(super) config: kube::Config,
    /// The files as they were just before.
    pub(super) files: Vec<FileText>,
}

/// A file as it was read.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct FileText {
    path: PathBuf,
    text: Option<Vec<u8>>,
}

impl std::fmt::Debug for FileText {
    /// Without the text, which may be a secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.path.display())
    }
}

impl FileText {
    fn read(path: &Path) -> Self {
        Self { path: path.into(), text: read(path).ok() }
    }

    /// Whether the file now says something else. One that cannot be read at the moment says
    /// nothing: what was read last stays in force.
    pub(super) fn changed(&self) -> bool {
        read(&self.path).is_ok_and(|now| self.text.as_ref() != Some(&now))
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    use io::Read as _;
    let mut text = Vec::new();
    fs::File::open(path)?.take(FILE_LIMIT).read_to_end(&mut text)?;
    Ok(text)
}

impl Source {
    /// Decides where to look. An explicit kubeconfig or context is never passed over for
    /// something else; otherwise a pod's service account comes before the default kubeconfig.
    pub(super) fn find(config: &ClusterConfig, env: &Environment) -> Result<Self, ClusterError> {
        let context = config.context.clone();
        if let Some(file) = &config.kubeconfig {
            return Ok(Self::Kubeconfig { files: vec![file.clone()], context });
        }
        let token = env.folder.join("token");
        let mut tried = Vec::new();
        if context.is_none() {
            match &env.host {
                Some(host) if token.exists() => {
                    let url = pod_url(host, env.port.as_deref().unwrap_or("443"));
                    return Ok(Self::Pod { url, folder: env.folder.clone() });
                }
                Some(_) => tried.push(format!(
                    "{} is missing, so the pod has no service account mounted",
                    token.display()
                )),
                None => tried.push("KUBERNETES_SERVICE_HOST is not set, so this is no pod".into()),
            }
        }
        let listed = env.kubeconfig.as_ref().map(|list| {
            env::split_paths(list).filter(|p| !p.as_os_str().is_empty()).collect::<Vec<_>>()
        });
        let files = match listed {
            Some(files) if !files.is_empty() => {
                // As kubectl does: files of the list that do not exist are passed over.
                let there: Vec<_> = files.iter().filter(|p| p.exists()).cloned().collect();
                if there.is_empty() {
                    tried.push(format!("KUBECONFIG names no file that exists ({files:?})"));
                }
                there
            }
            _ => {
                let file = env.home.as_ref().map(|home| home.join(".kube/config"));
                match file {
                    Some(file) if file.exists() => vec![file],
                    Some(file) => {
                        tried.push(format!("{} does not exist", file.display()));
                        Vec::new()
                    }
                    None => {
                        tried.push("there is no home folder with a kubeconfig".into());
                        Vec::new()
                    }
                }
            }
        };
        if files.is_empty() {
            return Err(ClusterError::NotConfigured { tried: tried.join("; ") });
        }
        Ok(Self::Kubeconfig { files, context })
    }

    /// Reads it all anew.
    pub(super) fn load(&self) -> Result<Loaded, ClusterError> {
        match self {
            Self::Pod { url, folder } => load_pod(url, folder),
            Self::Kubeconfig { files, context } => load_kubeconfig(files, context.as_deref()),
        }
    }
}

/// An address of IPv6 goes in brackets.
fn pod_url(host: &str, port: &str) -> String {
    match host.parse::<std::net::Ipv6Addr>() {
        Ok(address) => format!("https://[{address}]:{port}"),
        Err(_) => format!("https://{host}:{port}"),
    }
}

fn load_pod(url: &str, folder: &Path) -> Result<Loaded, ClusterError> {
    let (ca, token) = (folder.join("ca.crt"), folder.join("token"));
    let files = vec![FileText::read(&ca), FileText::read(&token)];
    let url = url.parse().map_err(|e| ClusterError::Config {
        what: format!("KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT make {url:?}"),
        reason: format!("{e}"),
    })?;
    let pem =
        read(&ca).map_err(|e| ClusterError::File { path: ca.clone(), reason: e.to_string() })?;
    let token = self::token(&token)?;
    let mut config = kube::Config::new(url);
    config.root_cert = Some(certificates(&ca, &pem)?);
    config.auth_info = AuthInfo { token: Some(token.into()), ..AuthInfo::default() };
    if let Ok(namespace) = fs::read_to_string(folder.join("namespace")) {
        config.default_namespace = namespace.trim().to_owned();
    }
    Ok(Loaded { config, files })
}

fn load_kubeconfig(paths: &[PathBuf], context: Option<&str>) -> Result<Loaded, ClusterError> {
    let what = || {
        let names: Vec<_> = paths.iter().map(|p| p.display().to_string()).collect();
        format!("kubeconfig {}", names.join(", "))
    };
    let unusable = |reason: String| ClusterError::Config { what: what(), reason };
    let mut files: Vec<_> = paths.iter().map(|path| FileText::read(path)).collect();
    let mut merged = Kubeconfig::default();
    for path in paths {
        let one = Kubeconfig::read_from(path).map_err(|e| unusable(unread(&e, path)))?;
        merged = merged.merge(one).map_err(|e| unusable(e.to_string()))?;
    }
    // What the chosen context does not use may be broken or absent without harm.
    let name = context.map(str::to_owned).or_else(|| merged.current_context.clone());
    let name = name.filter(|name| !name.is_empty()).ok_or_else(|| {
        unusable(format!("it has no current-context; give one of: {}", contexts(&merged)))
    })?;
    let chosen = merged.contexts.iter().find(|c| c.name == name).and_then(|c| c.context.as_ref());
    let chosen = chosen.cloned().ok_or_else(|| {
        unusable(format!("it has no context {name:?}, but: {}", contexts(&merged)))
    })?;
    let cluster = merged.clusters.iter().find(|c| c.name == chosen.cluster);
    let cluster = cluster.and_then(|c| c.cluster.clone()).ok_or_else(|| {
        unusable(format!("context {name:?} names the cluster {:?}, which it lacks", chosen.cluster))
    })?;
    if let Some(proxy) = cluster.proxy_url.as_deref().filter(|p| !p.is_empty()) {
        return Err(unusable(format!(
            "cluster {:?} has proxy-url {proxy:?}; proxies are not supported, name the API server",
            chosen.cluster
        )));
    }
    let user = chosen.user.as_ref();
    let user = user.and_then(|user| merged.auth_infos.iter().find(|u| &u.name == user));
    let user = user.and_then(|u| u.auth_info.clone()).unwrap_or_default();
    if cluster.certificate_authority_data.is_none() {
        files.extend(cluster.certificate_authority.iter().map(|p| FileText::read(p.as_ref())));
    }
    let mine = [
        user.token_file.as_ref().filter(|_| user.token.is_none()),
        user.client_certificate.as_ref().filter(|_| user.client_certificate_data.is_none()),
        user.client_key.as_ref().filter(|_| user.client_key_data.is_none()),
    ];
    files.extend(mine.into_iter().flatten().map(|p| FileText::read(p.as_ref())));

    merged.current_context = Some(name);
    let mut config = kube::Config::try_from(merged).map_err(|e| unusable(e.to_string()))?;
    if config.root_cert.as_ref().is_some_and(Vec::is_empty) {
        return Err(unusable(format!(
            "the certificate-authority of cluster {:?} has no certificate in PEM",
            chosen.cluster
        )));
    }
    if let (None, Some(path)) = (&config.auth_info.token, &config.auth_info.token_file) {
        let token = token(path.as_ref())?;
        config.auth_info.token = Some(token.into());
        config.auth_info.token_file = None;
    }
    Ok(Loaded { config, files })
}

/// Why a kubeconfig is not read. The parser quotes what it stumbled over, and that may be a
/// secret: of a text that is no kubeconfig only that is said.
fn unread(error: &KubeconfigError, path: &Path) -> String {
    match error {
        KubeconfigError::Parse(_) => format!(
            "{} is no kubeconfig; see what `kubectl config view --kubeconfig {}` says",
            path.display(),
            path.display()
        ),
        error => error.to_string(),
    }
}

fn contexts(kubeconfig: &Kubeconfig) -> String {
    match &kubeconfig.contexts[..] {
        [] => "none".into(),
        some => some.iter().map(|c| c.name.as_str()).collect::<Vec<_>>().join(", "),
    }
}

fn token(path: &Path) -> Result<String, ClusterError> {
    let bad = |reason: String| ClusterError::File { path: path.into(), reason };
    let text = read(path).map_err(|e| bad(e.to_string()))?;
    let text =
        String::from_utf8(text).map_err(|_| bad("it is no text; a token was expected".into()))?;
    match text.trim() {
        "" => Err(bad("it is empty; a token was expected".into())),
        token => Ok(token.to_owned()),
    }
}

/// The certificates of a PEM file, in DER; at least one.
fn certificates(path: &Path, pem: &[u8]) -> Result<Vec<Vec<u8>>, ClusterError> {
    let bad = |reason: String| ClusterError::File { path: path.into(), reason };
    let all: Result<Vec<_>, _> =
        CertificateDer::pem_slice_iter(pem).map(|c| c.map(|c| c.as_ref().to_vec())).collect();
    match all {
        Ok(all) if all.is_empty() => Err(bad("it has no certificate in PEM".into())),
        Ok(all) => Ok(all),
        Err(error) => Err(bad(format!("it is no PEM ({error})"))),
    }
}

#[cfg(test)]
mod tests;
