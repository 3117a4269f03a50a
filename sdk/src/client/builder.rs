//! How a client is set up.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use rulecast_api::{ServiceKey, spiffe};
use rulecast_identity::TokenSource;

use super::{Client, ConnectError, connect};

pub use crate::decision::TYPES;

/// What happens to calls before the first complete snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Startup {
    /// `connect()` waits for it, so there are none.
    #[default]
    Wait,
    /// `connect()` returns at once and no endpoint may be called.
    Deny,
    /// `connect()` returns at once and every endpoint may be called.
    Allow,
}

/// Times that rarely need another value.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Tuning {
    /// How long `connect()` waits with [`Startup::Wait`] before it fails; `None`: for ever.
    /// Default 60 s.
    pub startup_timeout: Option<Duration>,
    /// How long opening one connection may take. Default 5 s.
    pub connect_timeout: Duration,
    /// Shortest wait before connecting to the plane again; it doubles with every failure,
    /// with jitter. Default 100 ms.
    pub backoff_least: Duration,
    /// Longest wait before connecting again. Default 30 s.
    pub backoff_most: Duration,
    /// Between two writes of the snapshot at least; changes in between are
    /// written together. Default 100 ms.
    pub persist_interval: Duration,
    /// How long `shutdown()` lets the last snapshot be written. Default 5 s.
    pub shutdown_timeout: Duration,
    /// How often the plane is told what rules made of calls, at most and with jitter; a plane
    /// with many clients asks them to report less often. Some calls are told as examples: their
    /// method, path and caller. `None`: never. Default 5 s.
    pub report_interval: Option<Duration>,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            startup_timeout: Some(Duration::from_secs(60)),
            connect_timeout: Duration::from_secs(5),
            backoff_least: Duration::from_millis(100),
            backoff_most: Duration::from_secs(30),
            persist_interval: Duration::from_millis(100),
            shutdown_timeout: Duration::from_secs(5),
            report_interval: Some(Duration::from_secs(5)),
        }
    }
}

/// Sets up a [`Client`]. Addresses, application and, unless the state folder
/// holds a valid certificate, a join token are needed; the rest has defaults.
#[derive(Clone)]
#[must_use]
pub struct ClientBuilder {
    pub(crate) plane: String,
    pub(crate) ca: String,
    pub(crate) token: Option<TokenSource>,
    pub(crate) application: String,
    pub(crate) namespace: String,
    pub(crate) instance: Option<String>,
    pub(crate) parameters: BTreeMap<String, String>,
    pub(crate) services: Vec<String>,
    pub(crate) state_dir: Option<PathBuf>,
    pub(crate) startup: Startup,
    pub(crate) traced: f64,
    pub(crate) types: Vec<String>,
    pub(crate) tuning: Tuning,
}

impl Default for ClientBuilder {
    fn default() -> Self {
        Self {
            plane: String::new(),
            ca: String::new(),
            token: None,
            application: String::new(),
            namespace: "default".into(),
            instance: None,
            parameters: BTreeMap::new(),
            services: Vec::new(),
            state_dir: None,
            startup: Startup::default(),
            traced: 0.01,
            types: TYPES.iter().map(|&t| t.to_owned()).collect(),
            tuning: Tuning::default(),
        }
    }
}

impl ClientBuilder {
    /// Where the plane listens, `host:port`.
    pub fn plane(mut self, address: impl Into<String>) -> Self {
        self.plane = address.into();
        self
    }

    /// Where the certificate authority listens, `host:port`.
    pub fn ca(mut self, address: impl Into<String>) -> Self {
        self.ca = address.into();
        self
    }

    /// The join token for the first certificate.
    pub fn join_token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(TokenSource::Text(token.into()));
        self
    }

    /// A file with the join token, read when one is needed.
    pub fn join_token_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.token = Some(TokenSource::File(path.into()));
        self
    }

    /// A pod's credential: the file with its service-account token (audience `rulecast-ca`)
    /// and the PEM file with the authority's roots. Both are read anew whenever they are
    /// needed. The key then stays in memory, also with a [`state_dir`](Self::state_dir).
    pub fn service_account(
        mut self,
        token_file: impl Into<PathBuf>,
        trust_bundle: impl Into<PathBuf>,
    ) -> Self {
        let (token, bundle) = (token_file.into(), trust_bundle.into());
        self.token = Some(TokenSource::Kubernetes { token, bundle });
        self
    }

    /// Names this process in the plane's lists, for people. Default: made up at random; in
    /// a pod, the pod's name says most.
    pub fn instance(mut self, name: impl Into<String>) -> Self {
        self.instance = Some(name.into());
        self
    }

    /// The application's name, as its identity has it. In a pod, where an identity names the
    /// service account, it is what rules call the application.
    pub fn application(mut self, name: impl Into<String>) -> Self {
        self.application = name.into();
        self
    }

    /// The application's namespace, as its identity has it. Default `default`.
    pub fn namespace(mut self, name: impl Into<String>) -> Self {
        self.namespace = name.into();
        self
    }

    /// A parameter of this consumer, `region` or `version` for example; part of every request.
    /// `application` is there by itself.
    pub fn parameter(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.parameters.insert(name.into(), value.into());
        self
    }

    /// Several parameters of this consumer.
    pub fn parameters<N: Into<String>, V: Into<String>>(
        mut self,
        parameters: impl IntoIterator<Item = (N, V)>,
    ) -> Self {
        self.parameters.extend(parameters.into_iter().map(|(n, v)| (n.into(), v.into())));
        self
    }

    /// A service that the application calls, `[group/]interface[:version]`. Rules of
    /// others are then not sent; without any, rules of every service are.
    pub fn service(mut self, service: impl Into<String>) -> Self {
        self.services.push(service.into());
        self
    }

    /// A folder of the application's own for its last good snapshot, and outside of
    /// Kubernetes for key and certificate, so that it can start without authority and plane. Made (0700) when
    /// missing. Default: none, everything stays in memory.
    pub fn state_dir(mut self, folder: impl Into<PathBuf>) -> Self {
        self.state_dir = Some(folder.into());
        self
    }

    /// What happens before the first complete snapshot. Default [`Startup::Wait`].
    pub fn startup(mut self, startup: Startup) -> Self {
        self.startup = startup;
        self
    }

    /// The share of calls, 0 to 1, whose decisions have spans of `tracing`, target `rulecast`,
    /// level INFO: `rulecast.authorize` and `rulecast.limit` of the middleware, `rulecast.route`
    /// of channels. Calls whose caller traces them (`traceparent` with the flag `sampled`) have
    /// them always. Default 0.01.
    pub fn trace_share(mut self, share: f64) -> Self {
        self.traced = share;
        self
    }

    /// The types to subscribe to, `<group>/<version>/<Kind>`. Default [`TYPES`].
    pub fn subscribe<T: Into<String>>(mut self, types: impl IntoIterator<Item = T>) -> Self {
        self.types = types.into_iter().map(Into::into).collect();
        self
    }

    /// Other times than the defaults.
    pub fn tuning(mut self, tuning: Tuning) -> Self {
        self.tuning = tuning;
        self
    }

    /// Starts the client on the current tokio runtime.
    ///
    /// With [`Startup::Wait`] it resolves when every subscribed type is complete, from
    /// the plane or from the state folder; otherwise as soon as its parts run.
    /// Dropping the future stops what it began.
    pub async fn connect(self) -> Result<Client, ConnectError> {
        self.validate()?;
        connect::connect(self).await
    }

    fn validate(&self) -> Result<(), ConnectError> {
        let config = |option, message: String, hint| ConnectError::Config { option, message, hint };
        for (option, address) in [("plane", &self.plane), ("ca", &self.ca)] {
            if endpoint(address).is_none() {
                let message = if address.is_empty() {
                    "it is missing".to_owned()
                } else {
                    format!("\"{address}\" is no address")
                };
                return Err(config(option, message, "give host:port, for example localhost:15443"));
            }
        }
        for (option, name) in [("application", &self.application), ("namespace", &self.namespace)] {
            if !spiffe::valid_segment(name) {
                let message = format!("\"{name}\" cannot stand in an identity");
                return Err(config(option, message, "use 1 to 253 of a-zA-Z0-9._-"));
            }
        }
        for service in &self.services {
            if let Err(e) = service.parse::<ServiceKey>() {
                return Err(config("service", e.to_string(), "use [group/]interface[:version]"));
            }
        }
        if self.types.is_empty() {
            return Err(config("subscribe", "no type is named".into(), "name one or leave it out"));
        }
        if let Some(unknown) = self.types.iter().find(|t| !TYPES.contains(&t.as_str())) {
            let message = format!("this version has no policy for \"{unknown}\"");
            return Err(config("subscribe", message, "see rulecast_sdk::client::TYPES"));
        }
        Ok(())
    }
}

/// Host and port of an address, with or without `https://` before it.
pub(crate) fn endpoint(address: &str) -> Option<(String, u16)> {
    let address = address.strip_prefix("https://").unwrap_or(address);
    let (host, port) = address.trim_end_matches('/').rsplit_once(':')?;
    let port = port.parse().ok().filter(|p| *p != 0)?;
    let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
    let good = !bare.is_empty()
        && (bare.parse::<std::net::IpAddr>().is_ok()
            || bare.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_')));
    good.then(|| (bare.to_owned(), port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rulecast_api::Code;

    fn good() -> ClientBuilder {
        Client::builder().plane("localhost:1").ca("[::1]:2").application("shop")
    }

    #[test]
    fn what_is_missing_or_wrong_is_said_by_option() {
        good().validate().expect("complete");
        for (builder, option) in [
            (good().plane(""), "plane"),
            (good().plane("localhost"), "plane"),
            (good().plane("local host:1"), "plane"),
            (good().ca("http://x:1"), "ca"),
            (good().ca("x:0"), "ca"),
            (good().application(""), "application"),
            (good().namespace("a/b"), "namespace"),
            (good().service(""), "service"),
            (good().subscribe(["a/b/C"]), "subscribe"),
            (good().subscribe(Vec::<String>::new()), "subscribe"),
        ] {
            let error = builder.validate().expect_err(option);
            assert_eq!(error.code(), Code::ConfigInvalid);
            assert!(error.to_string().contains(&format!("option {option}")), "{error}");
        }
    }
}
