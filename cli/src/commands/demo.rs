//! `rulecast demo`: the whole way on one machine, with nothing mocked.

mod board;
mod http;
mod load;
mod plane;
mod rules;
mod screen;
mod script;
mod shop;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use rulecast_runtime::signal;
use rulecast_shop::report::Calls;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use self::{
    board::Board,
    load::Job,
    plane::{Admin, Service, Site, TRUST_DOMAIN},
    screen::Screen,
    script::Script,
    shop::{NAMESPACE, Shop},
};
use super::status::{show_problem, show_verdicts};

macro_rules! example {
    ($name:literal) => {
        ($name, include_str!(concat!("../../../examples/rules/", $name)))
    };
}

/// The example rules, so that the demo needs no checkout.
const EXAMPLES: [(&str, &str); 8] = [
    example!("gateway-customers.yaml"),
    example!("mutual-tls.yaml"),
    example!("orders-breaker.yaml"),
    example!("orders-canary.yaml"),
    example!("orders-read-only.yaml"),
    example!("orders-timeouts.yaml"),
    example!("stock-callers.yaml"),
    example!("stock-region.yaml"),
];

/// How often the processes are asked, and the table is drawn.
const LOOK: Duration = Duration::from_millis(500);

/// Where the table cannot be drawn anew: how often it is printed when nothing changes.
const PRINT: Duration = Duration::from_secs(10);

/// Run everything on this machine: authority, plane, and a small shop under load.
///
/// The shop's calls are shown as they spread, fail and are refused. Edit, break and delete files
/// of the rules folder and watch the calls follow. Ctrl-C ends it.
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
    shop: Shop,
    job: Job,
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
        let running = running?;
        if self.once {
            let script = Script::new(started).play(running);
            return match shutdown.run_until_cancelled(script).await {
                Some(played) => played.map(|()| ExitCode::SUCCESS),
                None => Ok(ExitCode::FAILURE),
            };
        }
        let Running { plane: (service, admin), ca, shop, job, site, _work, .. } = running;
        crate::output::outln!(
            "{} processes up in {:.1} s. Ctrl-C ends it.\n\
             rules      {}\n\
             gateway    curl http://{}/quotes/apple\n\
             plane      rulecast status --socket {}; http://{}/metrics\n\
             processes  {}\n\
             logs       {}\n",
            shop.len() + 2,
            started.elapsed().as_secs_f64(),
            site.rules.display(),
            shop.gateway(),
            site.socket().display(),
            site.http,
            shop.processes(),
            site.work.join("*.log").display(),
        );
        tokio::join!(watch(&shop, &job, admin, &shutdown), job.run(&shutdown));
        crate::output::outln!("\nstopping");
        job.stop().await;
        // One that was killed meanwhile, to see what happens, is no fault of the demo.
        if let Err(error) = shop.stop().await {
            let error = format!("{error:#}");
            crate::output::outln!("{}", error.split(';').next().unwrap_or_default());
        }
        service.stop().await?;
        ca.stop().await?;
        Ok(ExitCode::SUCCESS)
    }

    /// Starts authority, plane and shop, in this order.
    async fn start(&self) -> Result<Running> {
        let work = tempfile::Builder::new().prefix("rulecast-demo-").tempdir()?;
        let rules = match &self.rules {
            Some(dir) => dir.clone(),
            None if self.once => rules::folder(work.path())?,
            None => working_copy()?,
        };
        fs::create_dir_all(&rules).with_context(|| format!("rules folder {}", rules.display()))?;
        let site = Site::new(work.path().to_owned(), rules, shop::PORTS)?;

        rulecast_ca::init(&site.ca_dir(), TRUST_DOMAIN)?;
        let ttl = Duration::from_secs(3600);
        let token = |namespace: &str, application: &str| {
            anyhow::Ok(rulecast_ca::create_token(&site.ca_dir(), namespace, application, ttl)?)
        };
        let plane_token = work.path().join("dds.token");
        super::write_secret(&plane_token, &token("rulecast-system", "rulecast-dds")?)?;

        let ca = Service::ca(&site).await?;
        let plane = Service::dds(&site, &plane_token).await?;
        let job = token(NAMESPACE, Job::APPLICATION)?;
        let (shop, job) = tokio::try_join!(
            Shop::start(&site, |application| token(NAMESPACE, application)),
            Job::start(&site, &job),
        )?;
        Ok(Running { plane, ca, shop, job, plane_token, site, _work: work })
    }
}

/// Puts the shop under load, and shows what comes of it, until `shutdown`.
async fn watch(shop: &Shop, job: &Job, mut admin: Admin, shutdown: &CancellationToken) {
    let customers = Calls::default();
    load::customers(shop.gateway(), &customers, shutdown);
    let (mut screen, mut board) = (Screen::new(), Board::default());
    let mut shown_problems = BTreeSet::new();
    let (mut held, mut shadows, mut printed) = (String::new(), String::new(), Instant::now());
    let mut ticks = tokio::time::interval(LOOK);
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            _ = ticks.tick() => {}
        }
        // A plane that is away has nothing to say; the processes show that it is.
        if let Ok(status) = admin.status().await {
            let problems: BTreeSet<String> = status.problems.iter().map(show_problem).collect();
            for problem in problems.difference(&shown_problems) {
                screen.tell(&format!("{}  {problem}", time_of_day()));
            }
            shown_problems = problems;
            let lines = status.rules.iter().filter(|rule| rule.shadow).filter_map(show_verdicts);
            shadows = lines.map(|line| format!("  {line}\n")).collect();
        }
        let mut reports = shop.reports().await;
        reports.push(("reports", Some(job.report())));
        board.add(Instant::now(), &reports, &customers.edges());
        let changed = board.held() != held;
        if changed {
            held = board.held();
        }
        let calls = board.calls();
        if screen.is_live() {
            let title = if shadows.is_empty() { "" } else { "\nSHADOWS\n" };
            screen.stand(&format!("{calls}\nRULES HELD BY\n{held}{title}{shadows}"));
        } else if changed || printed.elapsed() >= PRINT {
            screen.stand(&format!("{}\n{held}{shadows}{calls}", time_of_day()));
            printed = Instant::now();
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
