//! `demo --once`: the story played and checked, step by step.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use super::{
    fleet::{Fleet, Spread},
    plane::{Admin, Service, Site},
};

/// How long any step may take before it counts as failed.
const STEP: Duration = Duration::from_secs(20);

const NAME: &str = "orders";

fn rule(conditions: &str) -> String {
    format!(
        "apiVersion: dubbo.apache.org/v1alpha1\nkind: ConditionRoute\nmetadata:\n  name: {NAME}\n  namespace: shop\n\
         spec:\n  configVersion: v3.0\n  scope: service\n  key: com.example.OrderService\n  force: true\n  conditions:\n    - \"{conditions}\"\n"
    )
}

/// Writes as editors do: beside, then renamed over.
fn write(path: &Path, text: &str) -> Result<Instant> {
    let beside = path.with_extension("tmp");
    fs::write(&beside, text)?;
    let at = Instant::now();
    fs::rename(&beside, path)?;
    Ok(at)
}

#[derive(Serialize)]
struct Figure {
    step: &'static str,
    /// From the file's write (or the process's start) until all clients held it.
    ms: f64,
}

pub(super) struct Script {
    figures: Vec<Figure>,
    decisions: u64,
    started: Instant,
}

impl Script {
    pub(super) fn new(started: Instant) -> Self {
        Self { figures: Vec::new(), decisions: 0, started }
    }

    fn done(&mut self, step: &'static str, since: Instant, what: &str) {
        let ms = since.elapsed().as_secs_f64() * 1000.0;
        crate::output::outln!("ok  {step:<10} {ms:>8.1} ms  {what}");
        self.figures.push(Figure { step, ms });
    }

    /// Waits until every client decides as `right` says, all of the time.
    async fn until(
        &mut self,
        fleet: &Fleet,
        step: &str,
        right: impl Fn(&Spread) -> bool,
    ) -> Result<()> {
        let since = Instant::now();
        loop {
            let mut changed = fleet.changed();
            let spreads = fleet.spreads(200);
            self.decisions += 200 * spreads.len() as u64;
            if spreads.iter().all(&right) {
                return Ok(());
            }
            let left = STEP.checked_sub(since.elapsed()).with_context(|| {
                format!("step {step}: not applied by all within {STEP:?}:\n{}", fleet.show())
            })?;
            // A client that changed is looked at again; the timer only bounds the wait.
            let _ =
                tokio::time::timeout(left.min(Duration::from_millis(100)), changed.changed()).await;
        }
    }

    /// Plays the story and closes with its figures as one line of JSON, also when a step
    /// fails. `plane` and `ca` are running; at its end both are stopped.
    pub(super) async fn play(
        mut self,
        site: &Site,
        token: &Path,
        ca: Service,
        plane: (Service, Admin),
        fleet: Fleet,
    ) -> Result<()> {
        let clients = fleet.len();
        let played = self.steps(site, token, ca, plane, fleet).await;
        let slowest = self
            .figures
            .iter()
            .filter(|figure| matches!(figure.step, "appear" | "change" | "mend" | "delete"))
            .map(|figure| figure.ms)
            .fold(0.0, f64::max);
        let line = serde_json::json!({
            "steps": self.figures,
            "clients": clients,
            "decisions": self.decisions,
            "write_to_applied_by_all_max_ms": slowest,
            "error": played.as_ref().err().map(|error| format!("{error:#}")),
        });
        crate::output::outln!("{line}");
        played?;
        ensure!(
            slowest <= 500.0,
            "a change took {slowest:.0} ms from the file to all clients; the promise is 500 ms"
        );
        Ok(())
    }

    async fn steps(
        &mut self,
        site: &Site,
        token: &Path,
        ca: Service,
        plane: (Service, Admin),
        mut fleet: Fleet,
    ) -> Result<()> {
        let (service, mut admin) = plane;
        let file = site.rules.join("orders.yaml");
        let everywhere = |spread: &Spread| spread.all_endpoints();
        let only =
            |key: &'static str, value: &'static str| move |spread: &Spread| spread.only(key, value);

        self.until(&fleet, "start", everywhere).await?;
        self.done("start", self.started, &format!("{} clients connected, no rule", fleet.len()));

        let at = write(&file, &rule("method=getOrder => region=hangzhou"))?;
        self.until(&fleet, "appear", only("region", "hangzhou")).await?;
        self.done("appear", at, "a rule appears: all calls go to region hangzhou");

        let at = write(&file, &rule("method=getOrder => region=beijing"))?;
        self.until(&fleet, "change", only("region", "beijing")).await?;
        self.done("change", at, "it changes: all calls go to region beijing");

        let at = write(&file, &rule("method=getOrder => region=="))?;
        let problem = loop {
            if let Some(problem) = admin.status().await?.problems.into_iter().next() {
                break problem;
            }
            ensure!(at.elapsed() < STEP, "step break: the plane does not report the broken file");
            tokio::time::sleep(Duration::from_millis(5)).await;
        };
        ensure!(
            problem.line == 12 && problem.field == "spec.conditions[0]" && !problem.hint.is_empty(),
            "step break: the report does not name line 12, field spec.conditions[0] and what would be right: {problem:?}"
        );
        self.until(&fleet, "break", only("region", "beijing")).await?;
        self.done("break", at, &crate::commands::status::show_problem(&problem));

        let at = write(&file, &rule("method=getOrder => env=gray"))?;
        self.until(&fleet, "mend", only("env", "gray")).await?;
        ensure!(
            admin.status().await?.problems.is_empty(),
            "step mend: the problem is still reported"
        );
        self.done("mend", at, "it is mended: all calls go to env gray");

        let at = Instant::now();
        service.kill().await?;
        fleet.wait_all(STEP, |status| !status.connected).await.context("step kill")?;
        let before = self.decisions;
        self.until(&fleet, "kill", only("env", "gray")).await?;
        self.done(
            "kill",
            at,
            &format!(
                "the plane is killed; {} decisions since, all by the last good rules",
                self.decisions - before
            ),
        );

        let at = Instant::now();
        fleet.restart(0).await.context("step restart: a client does not start without a plane")?;
        self.until(&fleet, "restart", only("env", "gray")).await?;
        self.done(
            "restart",
            at,
            "a client restarts without a plane: rules, key and certificate from its disk",
        );

        let revisions = fleet.revisions();
        let at = Instant::now();
        let (service, mut admin) = Service::dds(site, token).await?;
        fleet
            .wait_all(STEP, |status| status.connected && status.synced())
            .await
            .context("step resume")?;
        let clients = admin.status().await?.clients;
        ensure!(clients as usize == fleet.len(), "step resume: the plane sees {clients} clients");
        for (now, before) in fleet.revisions().iter().zip(&revisions) {
            ensure!(now >= before, "step resume: a revision went back from {before} to {now}");
        }
        self.until(&fleet, "resume", only("env", "gray")).await?;
        self.done("resume", at, "the plane comes back: every client resumes");

        let at = Instant::now();
        fs::remove_file(&file)?;
        self.until(&fleet, "delete", everywhere).await?;
        self.done("delete", at, "the rule is deleted: calls go everywhere again");

        let at = Instant::now();
        fleet.shutdown().await;
        service.stop().await?;
        ca.stop().await?;
        self.done("stop", at, "all ended cleanly");
        Ok(())
    }
}
