//! A client set up by its environment.

use std::{ffi::OsString, fs::File, io::Read as _, path::PathBuf};

use zeroize::Zeroizing;

use crate::client::{Client, ClientBuilder, ConnectError, endpoint};

const CA: &str = "RULECAST_CA_ADDRESS";
const DDS: &str = "RULECAST_DDS_ADDRESS";
const TRUST_BUNDLE: &str = "RULECAST_TRUST_BUNDLE";
const TOKEN_FILE: &str = "RULECAST_TOKEN_FILE";
const NAMESPACE: &str = "RULECAST_NAMESPACE";
const POD_NAME: &str = "RULECAST_POD_NAME";
const APP: &str = "RULECAST_APP";
const STATE: &str = "RULECAST_STATE";
/// Kubernetes sets it in every container.
const KUBERNETES: &str = "KUBERNETES_SERVICE_HOST";

const POD: &str = "the pod webhook of Rulecast sets it: label the pod, in its template, or its \
                   namespace rulecast.io/inject: \"true\", and make the pod anew";

/// Where an application begins whose surroundings say where everything is.
///
/// In a pod with the label `rulecast.io/inject: "true"` (on the pod or its namespace), all
/// that is left to say is what the application calls:
///
/// ```no_run
/// # async fn run() -> Result<(), rulecast_sdk::ConnectError> {
/// use rulecast_sdk::Rulecast;
///
/// let client =
///     Rulecast::from_env()?.service("com.example.OrderService").connect().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub enum Rulecast {}

impl Rulecast {
    /// Sets up a client by environment variables:
    ///
    /// | variable | what | needed |
    /// |---|---|---|
    /// | `RULECAST_CA_ADDRESS` | the authority, `host:port` | yes |
    /// | `RULECAST_DDS_ADDRESS` | the plane, `host:port` | yes |
    /// | `RULECAST_APP` | the application's name | yes |
    /// | `RULECAST_NAMESPACE` | its namespace | in a pod; else `default` |
    /// | `RULECAST_TRUST_BUNDLE` | file with the authority's roots, PEM; makes it a pod | in a pod |
    /// | `RULECAST_TOKEN_FILE` | in a pod, file with its service-account token; else with a join token | in a pod |
    /// | `RULECAST_POD_NAME` | names this process in the plane's lists | in a pod |
    /// | `RULECAST_STATE` | folder as of [`ClientBuilder::state_dir`] | no |
    ///
    /// The builder that it gives can be changed further. Fails with the first variable that
    /// is missing, is no text, has no usable value, or names a file that cannot be read.
    /// The files are read again whenever they are needed.
    pub fn from_env() -> Result<ClientBuilder, ConnectError> {
        Self::from_vars(std::env::var_os::<&str>)
    }

    /// As [`from_env`](Self::from_env), with variables from elsewhere.
    pub fn from_vars(
        variable: impl Fn(&'static str) -> Option<OsString>,
    ) -> Result<ClientBuilder, ConnectError> {
        let vars = Vars(&variable);
        let pod = vars.get(TRUST_BUNDLE)?.is_some()
            || vars.get(KUBERNETES)?.is_some() && vars.get(TOKEN_FILE)?.is_none();
        let hint = |outside| if pod { POD } else { outside };
        let ca = vars.address(CA, hint("give host:port of the authority"))?;
        let dds = vars.address(DDS, hint("give host:port of the plane"))?;
        let app =
            vars.needed(APP, hint("give the application's name, as its join token has it"))?;
        let mut builder = Client::builder().ca(ca).plane(dds).application(app);
        if pod {
            builder = builder
                .namespace(vars.needed(NAMESPACE, POD)?)
                .instance(vars.needed(POD_NAME, POD)?)
                .service_account(
                    vars.file(TOKEN_FILE, |_| None)?,
                    vars.file(TRUST_BUNDLE, |text| {
                        (!text.contains("BEGIN CERTIFICATE")).then_some("it holds no certificate")
                    })?,
                );
        } else {
            if let Some(namespace) = vars.get(NAMESPACE)? {
                builder = builder.namespace(namespace);
            }
            if let Some(pod) = vars.get(POD_NAME)? {
                builder = builder.instance(pod);
            }
            if let Some(path) = vars.get(TOKEN_FILE)? {
                vars.join_token(&path)?;
                builder = builder.join_token_file(path);
            }
        }
        if let Some(folder) = vars.get(STATE)? {
            builder = builder.state_dir(folder);
        }
        Ok(builder)
    }
}

struct Vars<'a>(&'a dyn Fn(&'static str) -> Option<OsString>);

impl Vars<'_> {
    /// `None` also for an empty one: manifests set variables empty to unset them.
    fn get(&self, variable: &'static str) -> Result<Option<String>, ConnectError> {
        let Some(value) = (self.0)(variable).filter(|value| !value.is_empty()) else {
            return Ok(None);
        };
        let text =
            value.into_string().map_err(|_| wrong(variable, "it is no text", "use UTF-8"))?;
        Ok(Some(text))
    }

    fn needed(&self, variable: &'static str, hint: &'static str) -> Result<String, ConnectError> {
        self.get(variable)?.ok_or_else(|| wrong(variable, "it is not set", hint))
    }

    fn address(&self, variable: &'static str, hint: &'static str) -> Result<String, ConnectError> {
        let address = self.needed(variable, hint)?;
        if endpoint(&address).is_none() {
            return Err(wrong(variable, format!("\"{address}\" is no address"), "give host:port"));
        }
        Ok(address)
    }

    /// The path in a variable of a pod, to a file that can be read and is good.
    fn file(
        &self,
        variable: &'static str,
        problem: impl Fn(&str) -> Option<&'static str>,
    ) -> Result<PathBuf, ConnectError> {
        let path = PathBuf::from(self.needed(variable, POD)?);
        let found = match read(&path) {
            Ok(text) if text.trim().is_empty() => Some("it is empty".to_owned()),
            Ok(text) => problem(&text).map(str::to_owned),
            Err(error) => Some(error.to_string()),
        };
        match found {
            None => Ok(path),
            Some(why) => Err(wrong(
                variable,
                format!("{} cannot be used: {why}", path.display()),
                "the pod webhook mounts it; see that no other volume lies over it and that the \
                 container's user may read it",
            )),
        }
    }

    /// A file that is missing may be right: a stored certificate needs no token.
    fn join_token(&self, path: &str) -> Result<(), ConnectError> {
        match read(path.as_ref()) {
            // What a service account has does not begin so.
            Ok(text) if !text.trim_start().starts_with("rcjt1.") => Err(wrong(
                TRUST_BUNDLE,
                format!(
                    "it is not set, so {TOKEN_FILE} should name a join token, and {path} holds none"
                ),
                "in a pod, set it to a file with the authority's roots; elsewhere make a join \
                 token with `rulecast ca token create`",
            )),
            _ => Ok(()),
        }
    }
}

/// At most 1 MiB of a text.
fn read(path: &std::path::Path) -> std::io::Result<Zeroizing<String>> {
    let mut text = Zeroizing::new(String::new());
    File::open(path)?.take(1 << 20).read_to_string(&mut text)?;
    Ok(text)
}

fn wrong(variable: &'static str, message: impl Into<String>, hint: &'static str) -> ConnectError {
    ConnectError::Environment { variable, message: message.into(), hint }
}

#[cfg(test)]
mod tests {
    use std::{collections::HashMap, path::Path};

    use rulecast_api::Code;
    use rulecast_identity::TokenSource;

    use super::*;

    type Map = HashMap<&'static str, OsString>;

    fn pod(folder: &Path) -> Map {
        let write = |name: &str, text: &str| {
            std::fs::write(folder.join(name), text).expect("written");
            folder.join(name).into_os_string()
        };
        let bundle = write("ca.crt", "-----BEGIN CERTIFICATE-----\n");
        let token = write("token", "ey.ey.sig");
        Map::from([
            (CA, "rulecast-ca.rulecast-system.svc:7443".into()),
            (DDS, "rulecast-dds.rulecast-system.svc:7444".into()),
            (TRUST_BUNDLE, bundle),
            (TOKEN_FILE, token),
            (NAMESPACE, "shop".into()),
            (POD_NAME, "web-5d9-x2x".into()),
            (APP, "web".into()),
            (KUBERNETES, "10.0.0.1".into()),
        ])
    }

    fn from(vars: &Map) -> Result<ClientBuilder, ConnectError> {
        Rulecast::from_vars(|name| vars.get(name).cloned())
    }

    fn refused(vars: &Map) -> String {
        let Err(error) = from(vars) else { panic!("{vars:?} is taken") };
        assert_eq!(error.code(), Code::ConfigInvalid);
        error.to_string()
    }

    #[test]
    fn a_pod_finds_everything() {
        let folder = tempfile::tempdir().expect("folder");
        let vars = pod(folder.path());
        let built = from(&vars).expect("complete");
        assert_eq!(built.ca, "rulecast-ca.rulecast-system.svc:7443");
        assert_eq!(built.plane, "rulecast-dds.rulecast-system.svc:7444");
        assert_eq!((&*built.namespace, &*built.application), ("shop", "web"));
        assert_eq!(built.instance.as_deref(), Some("web-5d9-x2x"));
        let Some(TokenSource::Kubernetes { token, bundle }) = built.token else { panic!("none") };
        assert_eq!((token, bundle), (folder.path().join("token"), folder.path().join("ca.crt")));
        assert_eq!(built.state_dir, None);
    }

    #[test]
    fn what_a_pod_lacks_is_said_by_name() {
        let folder = tempfile::tempdir().expect("folder");
        for variable in [CA, DDS, TRUST_BUNDLE, TOKEN_FILE, NAMESPACE, POD_NAME, APP] {
            for value in [None, Some("")] {
                let mut vars = pod(folder.path());
                vars.remove(variable);
                vars.extend(value.map(|v| (variable, v.into())));
                let error = refused(&vars);
                assert!(error.contains(variable), "{variable}: {error}");
                if variable != TRUST_BUNDLE {
                    assert!(error.contains("rulecast.io/inject: \"true\""), "{error}");
                }
            }
        }
        // Nothing at all, as in a pod without the label.
        let bare = Map::from([(KUBERNETES, "10.0.0.1".into())]);
        assert!(refused(&bare).contains("rulecast.io/inject: \"true\""));
    }

    #[test]
    fn files_and_values_that_are_wrong_are_said_by_name() {
        use std::os::unix::ffi::OsStringExt as _;
        let folder = tempfile::tempdir().expect("folder");
        let missing = folder.path().join("missing");
        for variable in [TOKEN_FILE, TRUST_BUNDLE] {
            let mut vars = pod(folder.path());
            vars.insert(variable, missing.clone().into());
            let error = refused(&vars);
            assert!(error.contains(variable) && error.contains("missing"), "{error}");
            let empty = folder.path().join("empty");
            std::fs::write(&empty, "\n").expect("written");
            vars.insert(variable, empty.into());
            assert!(refused(&vars).contains("it is empty"));
        }
        let mut vars = pod(folder.path());
        vars.insert(TRUST_BUNDLE, folder.path().join("token").into());
        assert!(refused(&vars).contains("it holds no certificate"));
        for (variable, value) in [
            (CA, OsString::from("here")),
            (DDS, "a b:1".into()),
            (APP, OsString::from_vec(vec![255])),
        ] {
            let mut vars = pod(folder.path());
            vars.insert(variable, value);
            assert!(refused(&vars).contains(variable));
        }
    }

    #[test]
    fn outside_of_kubernetes_a_join_token_does() {
        let folder = tempfile::tempdir().expect("folder");
        let token = folder.path().join("join");
        std::fs::write(&token, "rcjt1.abc\n").expect("written");
        let mut vars = Map::from([
            (CA, "localhost:7443".into()),
            (DDS, "localhost:7444".into()),
            (APP, "shop".into()),
            (TOKEN_FILE, token.clone().into()),
            (STATE, folder.path().into()),
        ]);
        let built = from(&vars).expect("complete");
        assert_eq!((&*built.namespace, built.instance), ("default", None));
        assert_eq!(built.state_dir.as_deref(), Some(folder.path()));
        assert!(matches!(built.token, Some(TokenSource::File(path)) if path == token));
        std::fs::remove_file(&token).expect("removed");
        let _ = from(&vars).expect("a stored certificate needs no token");
        std::fs::write(&token, "ey.ey.sig").expect("written");
        assert!(refused(&vars).contains(TRUST_BUNDLE), "a service account's");
        vars.remove(TOKEN_FILE);
        let _ = from(&vars).expect("a stored certificate");
        vars.remove(APP);
        let error = refused(&vars);
        assert!(error.contains(APP) && !error.contains("webhook"), "{error}");
    }
}
