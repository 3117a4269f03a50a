//! `rulecast client`: an application that holds rules and shows what it holds.

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;
use rulecast_runtime::signal;
use rulecast_sdk::client::{Client as SdkClient, Startup};

use crate::options::options;

options! {
    /// Options of the client.
    ClientOptions => ClientSettings;
    with {
        "Address of the authority" ca: String = "127.0.0.1:7443", "RULECAST_CA";
        "Address of the plane" plane: String = "127.0.0.1:7444", "RULECAST_PLANE";
        "Its namespace" namespace: String = "default", "RULECAST_NAMESPACE";
        "Its application" app: String = "rulecast-client", "RULECAST_APP";
    }
    may {
        "File with a join token; needed until it has a certificate" token_file: PathBuf, "RULECAST_TOKEN_FILE";
        "Folder for key, certificate and last good rules; without it they are kept in memory" state: PathBuf, "RULECAST_STATE";
    }
    many {
        "Services that it calls; all when none is named" service: String, "RULECAST_SERVICES";
    }
}

/// An application that holds rules: prints what it holds whenever that changes.
#[derive(clap::Args)]
pub(crate) struct Client {
    #[command(flatten)]
    options: ClientOptions,
}

impl Client {
    pub(crate) async fn run(self) -> Result<ExitCode> {
        let Some(settings) = self.options.resolve()? else { return Ok(ExitCode::SUCCESS) };
        let shutdown = signal::shutdown()?;
        let mut builder = SdkClient::builder()
            .ca(settings.ca)
            .plane(settings.plane)
            .namespace(settings.namespace)
            .application(settings.app)
            .startup(Startup::Wait);
        for service in settings.service {
            builder = builder.service(service);
        }
        if let Some(path) = &settings.token_file {
            builder = builder.join_token_file(path);
        }
        if let Some(dir) = settings.state {
            builder = builder.state_dir(dir);
        }
        let client = tokio::select! {
            client = builder.connect() => client?,
            () = shutdown.cancelled() => return Ok(ExitCode::SUCCESS),
        };
        let mut changes = client.changes();
        changes.mark_changed();
        loop {
            tokio::select! {
                Ok(()) = changes.changed() => {
                    crate::output::outln!("{}", changes.borrow_and_update().clone());
                }
                () = shutdown.cancelled() => break,
            }
        }
        client.shutdown().await;
        Ok(ExitCode::SUCCESS)
    }
}
