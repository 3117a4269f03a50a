//! What every process of the shop has: a client of Rulecast, a port, and channels to others.

use std::{convert::Infallible, net::SocketAddr, str::FromStr};

use anyhow::{Context as _, Result};
use http::{Request, Response};
use rulecast_runtime::{http::bind, signal};
use rulecast_sdk::{
    Client, Endpoint, EndpointSet, Rulecast,
    channel::GovernedChannel,
    tls::{self, Incoming, ServeOptions},
};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tower_service::Service;
use tracing_subscriber::{EnvFilter, filter::LevelFilter};

use crate::{page, proto::Server, report::Calls};

/// Options of every process. Where authority and plane are, and who this is, comes from the
/// environment, see [`Rulecast::from_env`].
#[derive(Clone, Debug, clap::Args)]
pub struct ProcessOptions {
    /// Where it takes calls
    #[arg(long, env = "SHOP_LISTEN", value_name = "ADDRESS")]
    pub listen: SocketAddr,
    /// Where probes and operators ask, by plain HTTP
    #[arg(long, env = "SHOP_HTTP", value_name = "ADDRESS")]
    pub http: Option<SocketAddr>,
    /// Its version, which rules may speak of
    #[arg(long, env = "SHOP_VERSION", default_value = "v1")]
    pub service_version: String,
    /// The region that it runs in, which rules may speak of
    #[arg(long, env = "SHOP_REGION", default_value = "hangzhou")]
    pub region: String,
}

/// A server of another service, and what rules may know of it.
#[derive(Clone, Debug)]
pub struct Address(Endpoint);

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(',');
        let address = parts.next().unwrap_or_default();
        let (host, port) = address
            .rsplit_once(':')
            .and_then(|(host, port)| Some((host.trim_matches(['[', ']']), port.parse().ok()?)))
            .filter(|(host, _)| !host.is_empty())
            .ok_or_else(|| format!("\"{address}\" is no address; write HOST:PORT"))?;
        parts
            .try_fold(Endpoint::new(host, port), |endpoint, part| {
                let (name, value) =
                    part.split_once('=').ok_or_else(|| format!("\"{part}\": write NAME=VALUE"))?;
                Ok(endpoint.with(name, value))
            })
            .map(Self)
    }
}

/// A process, connected.
pub struct Process {
    options: ProcessOptions,
    listener: TcpListener,
    client: Client,
    calls: Calls,
}

impl Process {
    /// Takes its port and gets identity and rules; `services` are those that it will call.
    pub async fn start(
        application: &str,
        options: ProcessOptions,
        services: &[&str],
        shutdown: &CancellationToken,
    ) -> Result<Self> {
        let listener = bind(options.listen).await?;
        let builder = Rulecast::from_vars(|name| {
            std::env::var_os(name).or_else(|| (name == "RULECAST_APP").then(|| application.into()))
        })?;
        let builder = services
            .iter()
            .fold(builder, |builder, service| builder.service(*service))
            .parameter("version", &options.service_version)
            .parameter("region", &options.region);
        let client = shutdown
            .run_until_cancelled(builder.connect())
            .await
            .context("stopped while it waited for its rules")??;
        let calls = Calls::default();
        if let Some(address) = options.http {
            page::serve(address, client.clone(), calls.clone(), shutdown.clone()).await?;
        }
        Ok(Self { options, listener, client, calls })
    }

    /// How answers name this process.
    pub fn server(&self) -> Server {
        Server {
            version: self.options.service_version.clone(),
            region: self.options.region.clone(),
            address: self.options.listen.to_string(),
        }
    }

    /// Its client of Rulecast.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Calls to a service at these addresses.
    pub fn caller(&self, service: &'static str, at: &[Address]) -> Result<Caller> {
        let endpoints = EndpointSet::new(at.iter().map(|address| address.0.clone()))?;
        let channel = GovernedChannel::builder(&self.client, service).endpoints(endpoints);
        Ok(Caller { service, channel: channel.channel(), calls: self.calls.clone() })
    }

    /// Serves over mutual TLS, or without, as rules say, until `shutdown`.
    pub async fn serve<S, B>(self, service: S, shutdown: CancellationToken) -> Result<()>
    where
        S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
        S: Clone + Send + 'static,
        S::Future: Send,
        B: http_body::Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
    {
        let options = ServeOptions::default();
        tls::serve(self.listener, &self.client, service, shutdown, options).await?;
        self.client.shutdown().await;
        Ok(())
    }
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A service that is called, and the count of these calls. Clones share both.
#[derive(Clone)]
pub struct Caller {
    service: &'static str,
    channel: GovernedChannel,
    calls: Calls,
}

impl Caller {
    /// For a client of tonic.
    pub fn channel(&self) -> GovernedChannel {
        self.channel.clone()
    }

    /// Makes a call and counts it. `by` says who answered.
    pub async fn watch<T>(
        &self,
        call: impl Future<Output = Result<tonic::Response<T>, Status>>,
        by: impl Fn(&T) -> Option<&Server>,
    ) -> Result<T, Status> {
        self.calls.watch(self.service, call, by).await
    }
}

/// A program of the shop: runs until a signal ends it, and logs to standard error.
pub fn main<F>(run: impl FnOnce(CancellationToken) -> F) -> Result<()>
where
    F: Future<Output = Result<()>>,
{
    let filter = EnvFilter::builder()
        .with_default_directive(LevelFilter::INFO.into())
        .with_env_var("RULECAST_LOG")
        .from_env()?;
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let ended = runtime.block_on(async { run(signal::shutdown()?).await });
    // Blocking tasks, such as a compiler, must not hold the exit up.
    runtime.shutdown_background();
    ended
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_what_rules_may_know() {
        let address: Address = "127.0.0.1:9001,version=v2,region=beijing".parse().expect("good");
        assert_eq!(address.0.address(), "127.0.0.1:9001");
        assert_eq!(address.0.params().get("version"), Some("v2"));
        assert_eq!("[::1]:80".parse::<Address>().expect("good").0.host(), "::1");
        for wrong in ["", "host", "host:x", ":1", "host:1,version"] {
            wrong.parse::<Address>().expect_err(wrong);
        }
    }
}
