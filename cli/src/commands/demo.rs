//! `rulecast demo`: the whole way on one machine, with nothing mocked.

mod fleet;
mod plane;
mod script;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use rulecast_runtime::signal;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use self::{
    fleet::{APPLICATION, Fleet, NAMESPACE},
    plane::{Admin, Service, Site, TRUST_DOMAIN},
    script::Script,
};
use super::status::show_problem;

/// The example rules, so that the demo needs no checkout.
const EXAMPLES: [(&str, &str); 3] = [
    ("orders-region.yaml", include_str!("../../../examples/rules/orders-region.yaml")),
    ("orders-canary.yaml", include_str!("../../../examples/rules/orders-canary.yaml")),
    ("orders-gray.yaml", include_str!("../../../examples/rules/orders-gray.yaml")),
];

/// How often the plane is asked for documents that it refuses.
const PROBLEMS_EVERY: Duration = Duration::from_millis(100);

/// What changes within this time is shown at once.
const GATHER: Duration = Duration::from_millis(50);

/// Run everything on this machine: authority, plane and a small fleet of clients.
///
/// Edit, break and delete files of the rules folder and watch the calls follow. Ctrl-C ends it.
#[derive(clap::Args)]
pub(crate) struct Demo {
    /// The folder of rules [default: rulecast-demo/rules, a working copy of the examples]
    #[arg(long, value_name = "DIR")]
    rules: Option<PathBuf>,
    /// Play and check a script instead, and close with its figures as one line of JSON
    #[arg(long, conflicts_with = "rules")]
    once: bool,
}

/// All that runs in a demo. What is dropped is ended: the services are killed and the folder
/// with their keys is removed.
struct Running {
    plane: (Service, Admin),
    ca: Service,
    fleet: Fleet,
    plane_token: PathBuf,
    site: Site,
    _work: TempDir,
}

impl Demo {
    pub(crate) async fn run(self) -> Result<ExitCode> {
        let started = Instant::now();
        // Before anything runs, so that a stop at any moment leaves nothing behind.
        let shutdown = signal::shutdown()?;
        let Some(running) = shutdown.run_until_cancelled(self.start()).await else {
            return Ok(ExitCode::FAILURE);
        };
        let Running { plane, ca, fleet, plane_token, site, _work } = running?;

        if self.once {
            let script = Script::new(started).play(&site, &plane_token, ca, plane, fleet);
            return match shutdown.run_until_cancelled(script).await {
                Some(played) => played.map(|()| ExitCode::SUCCESS),
                None => Ok(ExitCode::FAILURE),
            };
        }
        crate::output::outln!(
            "{} clients up in {:.1} s. Rules: {}   metrics: http://{}/metrics   Ctrl-C ends it.\n",
            fleet.len(),
            started.elapsed().as_secs_f64(),
            site.rules.display(),
            site.http,
        );
        let (service, admin) = plane;
        watch(&fleet, admin, shutdown).await;
        crate::output::outln!("\nstopping");
        fleet.shutdown().await;
        service.stop().await?;
        ca.stop().await?;
        Ok(ExitCode::SUCCESS)
    }

    /// Starts authority, plane and fleet, in this order.
    async fn start(&self) -> Result<Running> {
        let work = tempfile::Builder::new().prefix("rulecast-demo-").tempdir()?;
        let rules = match &self.rules {
            Some(dir) => dir.clone(),
            None if self.once => work.path().join("rules"),
            None => working_copy()?,
        };
        fs::create_dir_all(&rules).with_context(|| format!("rules folder {}", rules.display()))?;
        let site = Site::new(work.path().to_owned(), rules)?;

        rulecast_ca::init(&site.ca_dir(), TRUST_DOMAIN)?;
        let ttl = Duration::from_secs(3600);
        let token = |namespace, application| {
            rulecast_ca::create_token(&site.ca_dir(), namespace, application, ttl)
        };
        let plane_token = work.path().join("dds.token");
        super::write_secret(&plane_token, &token("rulecast-system", "rulecast-dds")?)?;
        let tokens = (0..Fleet::size())
            .map(|_| token(NAMESPACE, APPLICATION))
            .collect::<Result<Vec<_>, _>>()?;

        let ca = Service::ca(&site).await?;
        let plane = Service::dds(&site, &plane_token).await?;
        let fleet = Fleet::start(&site, tokens).await?;
        Ok(Running { plane, ca, fleet, plane_token, site, _work: work })
    }
}

/// Prints whenever something changes, until `shutdown`.
async fn watch(fleet: &Fleet, mut admin: Admin, shutdown: CancellationToken) {
    let mut changed = fleet.changed();
    let mut shown_problems = BTreeSet::new();
    let mut shown = String::new();
    let mut ask = tokio::time::interval(PROBLEMS_EVERY);
    changed.mark_changed();
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            Ok(()) = changed.changed() => {
                tokio::time::sleep(GATHER).await;
                changed.mark_unchanged();
                let held = fleet.holds();
                if held != shown {
                    crate::output::outln!("{}\n{}", time_of_day(), fleet.show());
                    shown = held;
                }
            }
            _ = ask.tick() => {
                // A plane that is away has nothing to say; the clients show that it is.
                let Ok(status) = admin.status().await else { continue };
                let problems: BTreeSet<String> = status.problems.iter().map(show_problem).collect();
                for problem in problems.difference(&shown_problems) {
                    crate::output::outln!("{}  {problem}\n", time_of_day());
                }
                shown_problems = problems;
            }
        }
    }
}

fn time_of_day() -> String {
    let now = time::OffsetDateTime::now_utc();
    format!("{:02}:{:02}:{:02}.{:03}", now.hour(), now.minute(), now.second(), now.millisecond())
}

/// The folder that a person edits: made of the examples where it is not there yet.
fn working_copy() -> Result<PathBuf> {
    let dir = Path::new("rulecast-demo").join("rules");
    if !dir.exists() {
        fs::create_dir_all(&dir).with_context(|| format!("rules folder {}", dir.display()))?;
        for (name, text) in EXAMPLES {
            fs::write(dir.join(name), text)?;
        }
    }
    Ok(dir)
}
