//! `rulecast dds`: the plane that delivers rules.

use std::{collections::BTreeMap, path::PathBuf, process::ExitCode};

use anyhow::{Context, Result};
use clap::Subcommand;
use rulecast_dds::app::{self, DdsConfig, StoreConfig};
use rulecast_runtime::signal;

use super::follow_parent;
use crate::options::{Address, Place, Span, options, token_source};

options! {
    /// Options of the plane.
    DdsOptions => DdsSettings;
    with {
        "Where rules are: files, or kubernetes" store: Place = "files", "RULECAST_DDS_STORE";
        "Folder of rule files" rules: PathBuf = "rules", "RULECAST_DDS_RULES";
        "Folder of what must outlive a restart: accepted rules, key and certificate" state: PathBuf = "rulecast-dds", "RULECAST_DDS_STATE";
        "Address for applications (mutual TLS)" listen: Address = "127.0.0.1:7444", "RULECAST_DDS_LISTEN";
        "Address of the authority" ca: String = "127.0.0.1:7443", "RULECAST_CA_ADDRESS";
        "Unix socket for `rulecast status`" admin_socket: PathBuf = "rulecast-dds.sock", "RULECAST_DDS_ADMIN_SOCKET";
        "Address for /metrics, /readyz and /livez (plain HTTP)" http: Address = "127.0.0.1:7445", "RULECAST_DDS_HTTP";
        "Namespace whose rules apply everywhere" root_namespace: String = "rulecast-system", "RULECAST_DDS_ROOT_NAMESPACE";
        "A burst of changes is gathered until it has been quiet for this long" quiet: Span = "10ms", "RULECAST_DDS_QUIET";
        "A burst is sent after this long, quiet or not" ceiling: Span = "200ms", "RULECAST_DDS_CEILING";
        "How long open streams may finish at shutdown" drain: Span = "5s", "RULECAST_DDS_DRAIN";
    }
    may {
        "File with the plane's own join token, needed until it has a certificate; with --trust-bundle, its service-account token" token_file: PathBuf, "RULECAST_TOKEN_FILE";
        "File with the authority's roots (PEM), for service-account tokens" trust_bundle: PathBuf, "RULECAST_TRUST_BUNDLE";
        "A kubeconfig file; without it the pod's service account, or else the default kubeconfig" kubeconfig: PathBuf, "RULECAST_KUBECONFIG";
        "A context of the kubeconfig" context: String, "RULECAST_KUBE_CONTEXT";
        "Names this replica among those that may write status; a pod's name is good" replica: String, "RULECAST_POD_NAME";
    }
    many {
        "Further namespaces that count as the root, for example dubbo-system" root_aliases: String, "RULECAST_DDS_ROOT_ALIASES";
        "Which namespace owns a service or application, SERVICE=NAMESPACE" owners: String, "RULECAST_DDS_OWNERS";
    }
}

/// The plane: reads rules, delivers them over mutual TLS, reports who obeys them.
///
/// Without a subcommand it runs.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Dds {
    #[command(flatten)]
    run: DdsOptions,
    #[command(subcommand)]
    command: Option<DdsCommand>,
}

#[derive(Subcommand)]
enum DdsCommand {
    /// Deliver rules until stopped
    Run(DdsOptions),
}

impl Dds {
    pub(crate) async fn run(self) -> Result<ExitCode> {
        let options = match self.command {
            Some(DdsCommand::Run(options)) => options,
            None => self.run,
        };
        let Some(settings) = options.resolve()? else { return Ok(ExitCode::SUCCESS) };
        follow_parent()?;
        let shutdown = signal::shutdown()?;
        let owners = settings
            .owners
            .iter()
            .map(|owner| {
                owner
                    .split_once('=')
                    .map(|(target, namespace)| (target.to_owned(), namespace.to_owned()))
                    .with_context(|| {
                        format!("RC0701: --owners \"{owner}\": write SERVICE=NAMESPACE")
                    })
            })
            .collect::<Result<BTreeMap<_, _>>>()?;
        let store = match settings.store {
            Place::Files => StoreConfig::Files { rules: settings.rules, state: settings.state },
            #[cfg(feature = "kubernetes")]
            Place::Kubernetes => StoreConfig::Kubernetes {
                cluster: rulecast_cluster::ClusterConfig {
                    kubeconfig: settings.kubeconfig,
                    context: settings.context,
                },
                replica: settings.replica.unwrap_or_else(super::replica),
            },
        };
        let config = DdsConfig {
            store,
            listen: settings.listen.0,
            ca: settings.ca,
            token: token_source(settings.token_file, settings.trust_bundle)?,
            admin_socket: settings.admin_socket,
            http: settings.http.0,
            root_namespace: settings.root_namespace,
            root_aliases: settings.root_aliases,
            owners,
            quiet: settings.quiet.0,
            ceiling: settings.ceiling.0,
            drain: settings.drain.0,
        };
        app::run(config, rulecast_api::kind::KINDS, shutdown).await?;
        Ok(ExitCode::SUCCESS)
    }
}
