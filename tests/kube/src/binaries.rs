//! Where the programs come from.

use std::{
    env,
    path::{Path, PathBuf},
};

use anyhow::{Result, bail};

/// The programs of a Kubernetes API server.
#[derive(Clone, Debug)]
pub(crate) struct Binaries {
    pub(crate) etcd: PathBuf,
    pub(crate) kube_apiserver: PathBuf,
}

/// A folder with the programs, as the tools of Kubernetes name it.
const ASSETS: &str = "KUBEBUILDER_ASSETS";

impl Binaries {
    /// Those of the machine. Builds nothing.
    pub(crate) fn find() -> Result<Self> {
        let search = Search::of_the_environment();
        Ok(Self {
            etcd: search.program("etcd")?,
            kube_apiserver: search.program("kube-apiserver")?,
        })
    }
}

/// The kubectl of the machine.
pub(crate) fn kubectl() -> Result<PathBuf> {
    Search::of_the_environment().program("kubectl")
}

/// Folders, in the order in which they are looked at.
struct Search(Vec<PathBuf>);

impl Search {
    fn of_the_environment() -> Self {
        let mut folders = Vec::new();
        folders.extend(env::var_os(ASSETS).filter(|dir| !dir.is_empty()).map(PathBuf::from));
        if let Some(path) = env::var_os("PATH") {
            folders.extend(env::split_paths(&path));
        }
        folders.extend(cache());
        Self(folders)
    }

    fn program(&self, name: &str) -> Result<PathBuf> {
        match self.0.iter().map(|dir| dir.join(name)).find(|path| is_program(path)) {
            Some(path) => Ok(path),
            None => bail!(
                "{name} is neither in {ASSETS}, nor in PATH, nor in the cache; \
                 `cargo xtask test` builds it once, `hack/kube-apiserver` alone too (5 to 10 minutes)"
            ),
        }
    }
}

/// Where hack/kube-apiserver puts what it builds.
fn cache() -> Option<PathBuf> {
    let base = match env::var_os("XDG_CACHE_HOME").filter(|dir| !dir.is_empty()) {
        Some(dir) => PathBuf::from(dir),
        None => env::home_dir()?.join(".cache"),
    };
    Some(base.join("rulecast/kube"))
}

fn is_program(path: &Path) -> bool {
    path.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;

    #[test]
    fn the_first_folder_with_a_program_counts() {
        let dir = tempfile::tempdir().expect("folder");
        let [first, second] = ["a", "b"].map(|name| dir.path().join(name));
        for (folder, mode) in [(&first, 0o644), (&second, 0o755)] {
            fs::create_dir(folder).expect("folder");
            fs::write(folder.join("etcd"), "").expect("file");
            let permissions = fs::Permissions::from_mode(mode);
            fs::set_permissions(folder.join("etcd"), permissions).expect("mode");
        }
        let search = Search(vec![first, second.clone()]);
        assert_eq!(search.program("etcd").expect("found"), second.join("etcd"), "a program only");
        let error = search.program("kube-apiserver").expect_err("not there").to_string();
        assert!(error.contains("cargo xtask test"), "{error}");
        assert!(error.contains("hack/kube-apiserver"), "{error}");
    }
}
