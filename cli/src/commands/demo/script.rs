//! `demo --once`: the story played and checked, step by step.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use http::{Method, StatusCode, header::RETRY_AFTER};
use rulecast_shop::{gateway::Answer, report::Report};
use serde::Serialize;
use tonic::Code;

use super::{
    Running,
    http::{Http, Reply},
    plane::{Admin, Service},
    rules::{CANARY, LIMIT, callers, route},
};

/// How long any step may take before it counts as failed.
const STEP: Duration = Duration::from_secs(20);

/// Calls that are looked at together.
const BATCH: usize = 24;

/// Calls while the plane is away; none may fail.
const GO_ON: usize = 500;

/// Calls by which a share is measured.
const MEASURED: usize = 2_000;

/// The rule of Orders' servers that the story is about.
const ORDERS: &str = "orders.yaml";

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
    /// From the file's write (or the process's start) until the calls followed it.
    ms: f64,
}

pub(super) struct Script {
    figures: Vec<Figure>,
    calls: u64,
    canary: f64,
    started: Instant,
    http: Http,
}

impl Script {
    pub(super) fn new(started: Instant) -> Self {
        Self { figures: Vec::new(), calls: 0, canary: 0.0, started, http: Http::new() }
    }

    fn done(&mut self, step: &'static str, since: Instant, what: &str) {
        let ms = since.elapsed().as_secs_f64() * 1000.0;
        crate::output::outln!("ok  {step:<10} {ms:>8.1} ms  {what}");
        self.figures.push(Figure { step, ms });
    }

    /// Calls of alice at the gateway, as many at a time as a batch has.
    async fn calls(&mut self, site: &Shopfront, count: usize) -> Result<Vec<Answer>> {
        self.calls += count as u64;
        stream::iter(0..count)
            .map(|_| site.call(&self.http, "alice"))
            .buffer_unordered(BATCH)
            .map(|reply| answer(reply?))
            .try_collect()
            .await
    }

    /// Waits until the answers are as `right` says.
    async fn until(
        &mut self,
        site: &Shopfront,
        step: &str,
        right: impl Fn(&[Answer]) -> bool,
    ) -> Result<()> {
        let since = Instant::now();
        loop {
            let answers = self.calls(site, BATCH).await;
            if answers.as_ref().is_ok_and(|answers| right(answers)) {
                return Ok(());
            }
            if since.elapsed() > STEP {
                let answers = answers?;
                bail!("step {step}: not in force within {STEP:?}: {}", spread(&answers));
            }
        }
    }

    /// Plays the story and closes with its figures as one line of JSON, also when a step
    /// fails. Everything is running; at its end all is stopped.
    pub(super) async fn play(mut self, running: Running) -> Result<()> {
        let clients = running.shop.len() + 1;
        let played = self.steps(running).await;
        let slowest = self
            .figures
            .iter()
            .filter(|figure| matches!(figure.step, "appear" | "change" | "mend" | "delete"))
            .map(|figure| figure.ms)
            .fold(0.0, f64::max);
        let line = serde_json::json!({
            "steps": self.figures,
            "clients": clients,
            "decisions": self.calls,
            "canary_percent": self.canary,
            "write_to_applied_by_all_max_ms": slowest,
            "error": played.as_ref().err().map(|error| format!("{error:#}")),
        });
        crate::output::outln!("{line}");
        played?;
        ensure!(
            slowest <= 500.0,
            "a change took {slowest:.0} ms from the file to all calls; the promise is 500 ms"
        );
        Ok(())
    }

    async fn steps(&mut self, running: Running) -> Result<()> {
        let Running {
            plane: (mut service, mut admin),
            ca,
            mut shop,
            job,
            plane_token,
            site,
            _work,
        } = running;
        let front = Shopfront(shop.gateway());
        let file = site.rules.join(ORDERS);
        let everywhere = |answers: &[Answer]| spread_of(answers).len() == 3;

        self.until(&front, "start", everywhere).await?;
        job.read().await.context("step start: the job is not answered")?;
        let processes = shop.len() + 2;
        self.done("start", self.started, &format!("{processes} processes up, mutual TLS only"));

        let at = write(&file, &route("=> region=hangzhou"))?;
        self.until(&front, "appear", only_region("hangzhou")).await?;
        self.done("appear", at, "a rule appears: all calls go to Orders in hangzhou");

        let at = write(&file, &route("=> region=beijing"))?;
        self.until(&front, "change", only_region("beijing")).await?;
        self.done("change", at, "it changes: all calls go to Orders in beijing");

        let at = write(&file, &route("=> region=="))?;
        let problem = problem(&mut admin, at).await?;
        self.until(&front, "break", only_region("beijing")).await?;
        self.done("break", at, &problem);

        let at = write(&file, &route("=> version=v2"))?;
        self.until(&front, "mend", only_version("v2")).await?;
        ensure!(
            admin.status().await?.problems.is_empty(),
            "step mend: the problem is still reported"
        );
        self.done("mend", at, "it is mended: all calls go to Orders v2");

        let policy = site.rules.join("stock-callers.yaml");
        let at = write(&policy, &callers(&["shop-orders"]))?;
        let refused = loop {
            match job.read().await {
                Err(status) if status.code() == Code::PermissionDenied => break status,
                other => ensure!(at.elapsed() < STEP, "step deny: the job is let in: {other:?}"),
            }
        };
        ensure!(
            refused.message().contains("stock-callers/shop"),
            "step deny: the refusal does not name the policy: {refused}"
        );
        self.until(&front, "deny", only_version("v2")).await?;
        self.done("deny", at, &format!("a job may not call Stock: {}", refused.message()));

        let at = write(&policy, &callers(&["shop-orders", "shop-reports"]))?;
        while let Err(status) = job.read().await {
            ensure!(at.elapsed() < STEP, "step turn: the job is not let in: {status}");
        }
        self.done("turn", at, "the policy is edited: now it may");

        let at = write(&site.rules.join("customers.yaml"), LIMIT)?;
        let refused = self.limited(&front, at).await?;
        self.until(&front, "limit", only_version("v2")).await?;
        self.done("limit", at, &format!("mallory calls too often: {refused}"));

        let at = Instant::now();
        service.kill().await?;
        shop.wait_all(STEP, |report| !report.connected).await.context("step kill")?;
        let answers = self.calls(&front, GO_ON).await.context("step kill: a call fails")?;
        ensure!(only_version("v2")(&answers), "step kill: {}", spread(&answers));
        self.done(
            "kill",
            at,
            &format!("the plane is killed; {GO_ON} calls since, all by the last good rules"),
        );

        let at = Instant::now();
        shop.restart("gateway").await.context("step restart: it does not start without a plane")?;
        self.until(&front, "restart", only_version("v2")).await?;
        self.done(
            "restart",
            at,
            "the gateway restarts without a plane: rules, key and certificate from its disk",
        );

        let before = revisions(&shop.reports().await);
        let at = Instant::now();
        let (service, mut admin) = Service::dds(&site, &plane_token).await?;
        shop.wait_all(STEP, |report| report.connected).await.context("step resume")?;
        // The job is no process of the shop, and comes back by itself.
        while admin.status().await?.clients as usize != shop.len() + 1 {
            ensure!(at.elapsed() < STEP, "step resume: the plane does not see every client");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        for (name, now) in revisions(&shop.reports().await) {
            let before = before.get(name).copied().unwrap_or(0);
            ensure!(now >= before, "step resume: {name} went back from {before} to {now}");
        }
        self.until(&front, "resume", only_version("v2")).await?;
        self.done("resume", at, "the plane comes back: every process resumes");

        let at = write(&file, CANARY)?;
        self.until(&front, "canary", |answers| {
            answers.iter().any(|answer| answer.orders.version == "v1")
        })
        .await?;
        let answers = self.calls(&front, MEASURED).await?;
        let v2 = answers.iter().filter(|answer| answer.orders.version == "v2").count();
        self.canary = v2 as f64 * 100.0 / MEASURED as f64;
        // Five standard deviations of so many draws.
        ensure!(
            (self.canary - 10.0).abs() < 3.4,
            "step canary: v2 got {:.1} % of {MEASURED} calls; 10 % are wanted",
            self.canary
        );
        self.done("canary", at, &format!("v2 gets {:.1} % of {MEASURED} calls", self.canary));

        let at = Instant::now();
        fs::remove_file(&file)?;
        self.until(&front, "delete", everywhere).await?;
        self.done("delete", at, "the rule is deleted: calls go everywhere again");

        let at = Instant::now();
        job.stop().await;
        shop.stop().await?;
        service.stop().await?;
        ca.stop().await?;
        self.done("stop", at, "all ended cleanly");
        Ok(())
    }

    /// Mallory calls until it is refused: what it is told.
    async fn limited(&mut self, front: &Shopfront, since: Instant) -> Result<String> {
        loop {
            let reply = front.call(&self.http, "mallory").await?;
            if reply.status == StatusCode::TOO_MANY_REQUESTS {
                ensure!(
                    reply.headers.contains_key(RETRY_AFTER)
                        && reply.body.contains("customers/shop"),
                    "step limit: the refusal names no rule or no time: {} {:?}",
                    reply.body,
                    reply.headers
                );
                return Ok(reply.body.trim_end().to_owned());
            }
            answer(reply)?;
            ensure!(since.elapsed() < STEP, "step limit: every call is taken");
        }
    }
}

/// The gateway, as customers see it.
struct Shopfront(std::net::SocketAddr);

impl Shopfront {
    async fn call(&self, http: &Http, customer: &str) -> Result<Reply> {
        http.call(Method::GET, self.0, "/quotes/apple", &[("x-customer", customer)]).await
    }
}

fn answer(reply: Reply) -> Result<Answer> {
    ensure!(reply.status.is_success(), "the gateway says {} {}", reply.status, reply.body);
    Ok(serde_json::from_str(&reply.body)?)
}

fn only_region(region: &str) -> impl Fn(&[Answer]) -> bool {
    move |answers| answers.iter().all(|answer| answer.orders.region == region)
}

fn only_version(version: &str) -> impl Fn(&[Answer]) -> bool {
    move |answers| answers.iter().all(|answer| answer.orders.version == version)
}

/// How many answers each server of Orders gave.
fn spread_of(answers: &[Answer]) -> BTreeMap<&str, usize> {
    let mut spread = BTreeMap::new();
    for answer in answers {
        *spread.entry(answer.orders.address.as_str()).or_default() += 1;
    }
    spread
}

fn spread(answers: &[Answer]) -> String {
    let servers: BTreeMap<&str, String> = answers
        .iter()
        .map(|Answer { orders, .. }| {
            (orders.address.as_str(), format!("{} {}", orders.version, orders.region))
        })
        .collect();
    let counts = spread_of(answers).into_iter().map(|(address, count)| {
        let server = servers.get(address).map_or("", String::as_str);
        format!("{count} calls to {server}")
    });
    counts.collect::<Vec<_>>().join(", ")
}

/// The highest revision that each process holds.
fn revisions<'a>(reports: &[(&'a str, Option<Report>)]) -> BTreeMap<&'a str, i64> {
    let revision = |report: &Report| report.rules.iter().map(|held| held.revision).max();
    reports.iter().filter_map(|(name, report)| Some((*name, revision(report.as_ref()?)?))).collect()
}

/// Waits for the plane to say what is wrong with the file that was broken.
async fn problem(admin: &mut Admin, since: Instant) -> Result<String> {
    loop {
        if let Some(problem) = admin.status().await?.problems.into_iter().next() {
            ensure!(
                problem.line == 12
                    && problem.field == "spec.conditions[0]"
                    && !problem.hint.is_empty(),
                "step break: the report does not name line 12, field spec.conditions[0] and what \
                 would be right: {problem:?}"
            );
            return Ok(crate::commands::status::show_problem(&problem));
        }
        ensure!(since.elapsed() < STEP, "step break: the plane does not report the broken file");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
