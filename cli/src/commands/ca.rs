//! `rulecast ca`: the certificate authority.

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;
use clap::Subcommand;
use rulecast_ca::{CaConfig, DubboConfig, Place};
use rulecast_runtime::signal;

use super::follow_parent;
use crate::options::{self, Address, Span, options};

options! {
    /// Options of the authority.
    CaOptions => CaSettings;
    with {
        "Where the authority is kept: files, or kubernetes" store: options::Place = "files", "RULECAST_CA_STORE";
        "Folder of the authority, made by `rulecast ca init`" dir: PathBuf = "rulecast-ca", "RULECAST_CA_DIR";
        "Address for certificate requests (TLS)" listen: Address = "127.0.0.1:7443", "RULECAST_CA_LISTEN";
        "Life of a certificate" ttl: Span = "1h", "RULECAST_CA_TTL";
        "Longest life that a client may ask for" max_ttl: Span = "24h", "RULECAST_CA_MAX_TTL";
        "How long open connections may finish at shutdown" drain: Span = "5s", "RULECAST_CA_DRAIN";
    }
    may {
        "Address for /metrics, /readyz and /livez (plain HTTP)" http: Address, "RULECAST_CA_HTTP";
        "In a cluster: names the realm of its identities; for good, once the authority is made" trust_domain: String, "RULECAST_TRUST_DOMAIN";
        "In a cluster: a kubeconfig file; without it the pod's service account, or else the default kubeconfig" kubeconfig: PathBuf, "RULECAST_KUBECONFIG";
        "In a cluster: a context of the kubeconfig" context: String, "RULECAST_KUBE_CONTEXT";
        "In a cluster: names this replica among those that may publish; a pod's name is good" replica: String, "RULECAST_POD_NAME";
        "In a cluster: address of the webhook that mounts trust into pods (TLS); none when not given" webhook_listen: Address, "RULECAST_CA_WEBHOOK_LISTEN";
        "In a cluster: address of the authority as pods are told [default: rulecast-ca.rulecast-system.svc:7443]" ca_address: String, "RULECAST_CA_ADDRESS";
        "In a cluster: address of the plane as pods are told [default: rulecast-dds.rulecast-system.svc:7444]" dds_address: String, "RULECAST_DDS_ADDRESS";
        "In a cluster: pods with the labels of Dubbo's authority get its environment and mounts too, and certificates for their tokens of audience dubbo-ca [default: false]" compat_dubbo: bool, "RULECAST_CA_COMPAT_DUBBO";
    }
    many {
        "In a cluster: names and addresses that the webhook's certificate is for [default: rulecast-ca.rulecast-system.svc]" webhook_hosts: String, "RULECAST_CA_WEBHOOK_HOSTS";
        "Names and addresses in the authority's certificate besides its SPIFFE name, for Dubbo's clients [default: none; with compat-dubbo the host of ca-address]" names: String, "RULECAST_CA_NAMES";
        "The same in the plane's certificate [default: none; with compat-dubbo the host of dds-address]" dds_names: String, "RULECAST_CA_DDS_NAMES";
    }
}

/// The certificate authority: run it, make it, hand out join tokens.
///
/// Without a subcommand it runs.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Ca {
    #[command(flatten)]
    run: CaOptions,
    #[command(subcommand)]
    command: Option<CaCommand>,
}

#[derive(Subcommand)]
enum CaCommand {
    /// Issue certificates until stopped
    Run(Box<CaOptions>),
    /// Make a root and an intermediate in a new folder
    Init {
        /// The folder to make; it must not hold an authority yet
        #[arg(long, env = "RULECAST_CA_DIR", default_value = "rulecast-ca")]
        dir: PathBuf,
        /// Names the realm of its identities, for example shop.example
        #[arg(long, env = "RULECAST_TRUST_DOMAIN")]
        trust_domain: String,
    },
    /// Join tokens: what a new application shows for its first certificate
    Token {
        #[command(subcommand)]
        command: TokenCommand,
    },
}

#[derive(Subcommand)]
enum TokenCommand {
    /// Print a new token: for one use, by one application
    Create {
        /// Folder of the authority
        #[arg(long, env = "RULECAST_CA_DIR", default_value = "rulecast-ca")]
        dir: PathBuf,
        /// Namespace of the application
        #[arg(long)]
        namespace: String,
        /// The application
        #[arg(long)]
        app: String,
        /// Until when it may be used, from now
        #[arg(long, default_value = "1h")]
        ttl: Span,
    },
}

impl Ca {
    pub(crate) async fn run(self) -> Result<ExitCode> {
        match self.command {
            None => serve(self.run).await,
            Some(CaCommand::Run(options)) => serve(*options).await,
            Some(CaCommand::Init { dir, trust_domain }) => {
                rulecast_ca::init(&dir, &trust_domain)?;
                crate::output::outln!("authority of {trust_domain} made in {}", dir.display());
                Ok(ExitCode::SUCCESS)
            }
            Some(CaCommand::Token {
                command: TokenCommand::Create { dir, namespace, app, ttl },
            }) => {
                crate::output::outln!(
                    "{}",
                    rulecast_ca::create_token(&dir, &namespace, &app, ttl.0)?
                );
                Ok(ExitCode::SUCCESS)
            }
        }
    }
}

async fn serve(options: CaOptions) -> Result<ExitCode> {
    let Some(settings) = options.resolve()? else { return Ok(ExitCode::SUCCESS) };
    follow_parent()?;
    let shutdown = signal::shutdown()?;
    let config = CaConfig {
        place: place(&settings)?,
        listen: settings.listen.0,
        http: settings.http.map(|address| address.0),
        ttl: settings.ttl.0,
        max_ttl: settings.max_ttl.0,
        drain: settings.drain.0,
        dubbo: dubbo(&settings),
    };
    rulecast_ca::run(config, shutdown).await?;
    Ok(ExitCode::SUCCESS)
}

/// What is done for Dubbo's clients. They know servers by the names that they connect to; in a
/// cluster those are what their pods are told.
fn dubbo(settings: &CaSettings) -> DubboConfig {
    let tokens = settings.compat_dubbo.unwrap_or_default();
    let names = |given: &[String], address: Option<&String>, default: &str| {
        if !given.is_empty() || !tokens {
            return given.to_vec();
        }
        let address = address.map_or(default, String::as_str);
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        vec![host.trim_matches(['[', ']']).to_owned()]
    };
    DubboConfig {
        tokens,
        names: names(
            &settings.names,
            settings.ca_address.as_ref(),
            "rulecast-ca.rulecast-system.svc",
        ),
        dds_names: names(
            &settings.dds_names,
            settings.dds_address.as_ref(),
            "rulecast-dds.rulecast-system.svc",
        ),
    }
}

fn place(settings: &CaSettings) -> Result<Place> {
    match settings.store {
        options::Place::Files => Ok(Place::Folder(settings.dir.clone())),
        #[cfg(feature = "kubernetes")]
        options::Place::Kubernetes => cluster(settings).map(Box::new).map(Place::Cluster),
    }
}

#[cfg(feature = "kubernetes")]
fn cluster(settings: &CaSettings) -> Result<rulecast_ca::kubernetes::KubernetesCa> {
    use anyhow::Context as _;
    use rulecast_ca::kubernetes::{KubernetesCa, webhook::WebhookConfig};
    let trust_domain = settings.trust_domain.as_ref().context(
        "RC0701: --trust-domain is missing: it names the realm of all identities, for example cluster.local",
    )?;
    let replica = settings.replica.clone().unwrap_or_else(super::replica);
    let mut ca = KubernetesCa::new(trust_domain, replica);
    ca.cluster.kubeconfig = settings.kubeconfig.clone();
    ca.cluster.context = settings.context.clone();
    ca.webhook = settings.webhook_listen.map(|listen| {
        let mut webhook = WebhookConfig::in_namespace(&ca.namespace);
        webhook.listen = listen.0;
        webhook.drain = settings.drain.0;
        webhook.compat_dubbo = settings.compat_dubbo.unwrap_or_default();
        if !settings.webhook_hosts.is_empty() {
            webhook.hosts = settings.webhook_hosts.clone();
        }
        if let Some(address) = &settings.ca_address {
            webhook.ca_address = address.clone();
        }
        if let Some(address) = &settings.dds_address {
            webhook.dds_address = address.clone();
        }
        webhook
    });
    Ok(ca)
}
