//! `rulecast client`: an application that holds rules, and shows what it holds and decides.

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context, Result, bail};
use rulecast_runtime::signal;
use rulecast_sdk::{
    client::{Client as SdkClient, Startup},
    endpoints::EndpointSet,
};

use super::eval::read_endpoints;
use crate::{options::options, table};

options! {
    /// Options of the client.
    ClientOptions => ClientSettings;
    with {
        "Address of the authority" ca: String = "127.0.0.1:7443", "RULECAST_CA_ADDRESS";
        "Address of the plane" plane: String = "127.0.0.1:7444", "RULECAST_DDS_ADDRESS";
        "Its namespace" namespace: String = "default", "RULECAST_NAMESPACE";
        "Its application" app: String = "rulecast-client", "RULECAST_APP";
    }
    may {
        "File with a join token, needed until it has a certificate; with --trust-bundle, a service-account token" token_file: PathBuf, "RULECAST_TOKEN_FILE";
        "File with the authority's roots (PEM), for service-account tokens" trust_bundle: PathBuf, "RULECAST_TRUST_BUNDLE";
        "Names this process to people; a pod's name is good" pod_name: String, "RULECAST_POD_NAME";
        "Folder for key, certificate and last good rules; without it they are kept in memory" state: PathBuf, "RULECAST_STATE";
        "Endpoints of the first service, a list of parameter maps as in examples/endpoints.json: also print how calls spread over them" endpoints: PathBuf, "RULECAST_ENDPOINTS";
        "The method that those calls invoke" method: String, "RULECAST_METHOD";
    }
    many {
        "Services that it calls; all when none is named" service: String, "RULECAST_SERVICES";
        "What it is, NAME=VALUE, for example region=hangzhou" parameter: String, "RULECAST_PARAMETERS";
    }
}

/// An application that holds rules: prints what it holds whenever that changes, and with
/// --endpoints how its calls spread.
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
        let calls = match (&settings.endpoints, settings.service.first()) {
            (Some(path), Some(service)) => Some(Calls {
                service: service.clone(),
                method: settings.method.unwrap_or_default(),
                endpoints: EndpointSet::new(read_endpoints(path)?)?,
            }),
            (Some(_), None) => bail!("RC0701: --endpoints needs --service: whose they are"),
            (None, _) => None,
        };
        for service in settings.service {
            builder = builder.service(service);
        }
        for parameter in &settings.parameter {
            let (name, value) = parameter.split_once('=').with_context(|| {
                format!("RC0701: --parameter \"{parameter}\": write NAME=VALUE")
            })?;
            builder = builder.parameter(name, value);
        }
        match (&settings.token_file, &settings.trust_bundle) {
            (Some(token), Some(bundle)) => builder = builder.service_account(token, bundle),
            (Some(token), None) => builder = builder.join_token_file(token),
            (None, Some(_)) => bail!("RC0701: --trust-bundle needs --token-file"),
            (None, None) => {}
        }
        if let Some(name) = settings.pod_name {
            builder = builder.instance(name);
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
                    if let Some(calls) = &calls {
                        crate::output::outln!("{}", calls.spread(&client));
                    }
                }
                () = shutdown.cancelled() => break,
            }
        }
        client.shutdown().await;
        Ok(ExitCode::SUCCESS)
    }
}

/// Calls of one service, to be decided whenever something changes.
struct Calls {
    service: String,
    method: String,
    endpoints: EndpointSet,
}

impl Calls {
    /// How calls spread when each goes to a random one of the endpoints that it may use.
    fn spread(&self, client: &SdkClient) -> String {
        const CALLS: u32 = 2_000;
        let mut counts = vec![0_u32; self.endpoints.len()];
        let mut none = 0_u32;
        for _ in 0..CALLS {
            let request = client.request(self.service.as_str()).method(self.method.as_str());
            let kept = client.route(&request, &self.endpoints).endpoints;
            let chosen = kept.get(fastrand::usize(..kept.len().max(1)));
            match chosen.and_then(|at| counts.get_mut(*at as usize)) {
                Some(count) => *count += 1,
                None => none += 1,
            }
        }
        let share = |count: u32| format!("{:.1} %", f64::from(count) * 100.0 / f64::from(CALLS));
        let mut rows: Vec<Vec<String>> = self
            .endpoints
            .endpoints()
            .iter()
            .zip(counts)
            .map(|(endpoint, count)| {
                let others = endpoint
                    .params()
                    .iter()
                    .filter(|(name, _)| !matches!(*name, "address" | "host" | "port"))
                    .map(|(name, value)| format!("{name}={value}"));
                let others: Vec<String> = others.collect();
                vec![share(count), endpoint.address().to_owned(), others.join(" ")]
            })
            .collect();
        rows.push(vec![share(none), "nobody".to_owned(), String::new()]);
        table::render(&["CALLS", "ENDPOINT", "PARAMETERS"], &rows)
    }
}
