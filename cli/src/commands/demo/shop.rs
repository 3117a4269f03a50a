//! The shop of the demo: each server a process with an identity of its own.

use std::{
    ffi::{OsStr, OsString},
    net::SocketAddr,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use futures_util::future::{join_all, try_join_all};
use rulecast_shop::report::Report;

use super::{
    http::Http,
    plane::{Service, Site},
};

/// Where the shop lives.
pub(super) const NAMESPACE: &str = "shop";

/// What a process does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Gateway,
    Orders,
    Stock,
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Self::Gateway => "gateway",
            Self::Orders => "orders",
            Self::Stock => "stock",
        }
    }

    /// Its application, as its identity has it.
    pub(super) fn application(self) -> String {
        format!("shop-{}", self.name())
    }
}

/// The processes: name, role, version, region.
pub(super) const PROCESSES: [(&str, Role, &str, &str); 6] = [
    ("gateway", Role::Gateway, "v1", "hangzhou"),
    ("orders-1", Role::Orders, "v1", "hangzhou"),
    ("orders-2", Role::Orders, "v1", "beijing"),
    ("orders-3", Role::Orders, "v2", "hangzhou"),
    ("stock-1", Role::Stock, "v1", "hangzhou"),
    ("stock-2", Role::Stock, "v1", "beijing"),
];

/// Ports that the shop needs: where each process takes calls, and where it is asked about them.
pub(super) const PORTS: usize = 2 * PROCESSES.len();

struct Member {
    name: &'static str,
    http: SocketAddr,
    args: Vec<OsString>,
    variables: Vec<(&'static str, OsString)>,
    service: Service,
}

/// All processes of the shop.
pub(super) struct Shop {
    work: PathBuf,
    gateway: SocketAddr,
    members: Vec<Member>,
    http: Http,
}

impl Shop {
    /// Starts every process, each with a token of its own, and waits until all hold their rules.
    /// `token` makes one for an application.
    pub(super) async fn start(site: &Site, token: impl Fn(&str) -> Result<String>) -> Result<Self> {
        let ports = site.shop.chunks(2).map(|two| (two[0], two[1]));
        let plan: Vec<_> = PROCESSES.into_iter().zip(ports).collect();
        // A process's servers, as its options name them.
        let servers = |role: Role| {
            let of = plan.iter().filter(|((_, is, ..), _)| *is == role);
            of.map(|((_, _, version, region), (listen, _))| {
                format!(
                    "{listen},version={version},region={region},application={}",
                    role.application()
                )
            })
            .collect::<Vec<_>>()
        };
        let mut members = Vec::new();
        for ((name, role, version, region), (listen, http)) in &plan {
            let file = site.work.join(format!("{name}.token"));
            super::super::write_secret(&file, &token(&role.application())?)?;
            let mut args = vec!["shop".to_owned(), role.name().to_owned()];
            args.extend(["--listen".to_owned(), listen.to_string()]);
            args.extend(["--http".to_owned(), http.to_string()]);
            args.extend(["--service-version".to_owned(), (*version).to_owned()]);
            args.extend(["--region".to_owned(), (*region).to_owned()]);
            let (option, called) = match role {
                Role::Gateway => ("--orders", servers(Role::Orders)),
                Role::Orders => ("--stock", servers(Role::Stock)),
                Role::Stock => ("", Vec::new()),
            };
            args.extend(called.into_iter().flat_map(|server| [option.to_owned(), server]));
            let args: Vec<OsString> = args.into_iter().map(OsString::from).collect();
            let variables = vec![
                ("RULECAST_CA_ADDRESS", site.ca.to_string().into()),
                ("RULECAST_DDS_ADDRESS", site.dds.to_string().into()),
                ("RULECAST_NAMESPACE", NAMESPACE.into()),
                ("RULECAST_APP", role.application().into()),
                ("RULECAST_POD_NAME", OsString::from(name)),
                ("RULECAST_TOKEN_FILE", file.into()),
                ("RULECAST_STATE", site.work.join(name).into()),
                // Whatever this process was started with, these are no pods.
                ("RULECAST_TRUST_BUNDLE", OsString::new()),
            ];
            let service = start(name, &site.work, &args, &variables)?;
            members.push(Member { name, http: *http, args, variables, service });
        }
        let gateway = plan.first().context("a gateway")?.1.0;
        let mut shop = Self { work: site.work.clone(), gateway, members, http: Http::new() };
        let http = shop.http.clone();
        try_join_all(shop.members.iter_mut().map(|member| ready(&http, member))).await?;
        Ok(shop)
    }

    /// Where the gateway takes calls.
    pub(super) fn gateway(&self) -> SocketAddr {
        self.gateway
    }

    /// How many processes it has.
    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    /// Names and process ids, for whoever wants to kill one.
    pub(super) fn processes(&self) -> String {
        let each = self
            .members
            .iter()
            .filter_map(|member| Some(format!("{} {}", member.name, member.service.process()?)));
        each.collect::<Vec<_>>().join(", ")
    }

    /// What each process tells of itself; `None` where it does not answer.
    pub(super) async fn reports(&self) -> Vec<(&'static str, Option<Report>)> {
        join_all(self.members.iter().map(async |member| {
            let answer = self.http.get(member.http, "/report").await.ok();
            (member.name, answer.and_then(|answer| serde_json::from_str(&answer.body).ok()))
        }))
        .await
    }

    /// Waits until every process is as `right` says.
    pub(super) async fn wait_all(
        &self,
        limit: Duration,
        right: impl Fn(&Report) -> bool,
    ) -> Result<()> {
        let since = Instant::now();
        loop {
            let reports = self.reports().await;
            let wrong = reports.iter().find(|(_, report)| !report.as_ref().is_some_and(&right));
            let Some((name, report)) = wrong else { return Ok(()) };
            ensure!(
                since.elapsed() < limit,
                "{name} does not come to it within {limit:?}: {report:?}"
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Kills a process and starts it anew from its state folder, without its token.
    pub(super) async fn restart(&mut self, name: &str) -> Result<()> {
        let member = self
            .members
            .iter_mut()
            .find(|member| member.name == name)
            .with_context(|| format!("no process {name}"))?;
        let fresh = |member: &Member| {
            let variables: Vec<_> = member
                .variables
                .iter()
                .filter(|(name, _)| *name != "RULECAST_TOKEN_FILE")
                .cloned()
                .collect();
            start(member.name, &self.work, &member.args, &variables)
        };
        member.service.kill().await?;
        member.service = fresh(member)?;
        ready(&self.http, member).await
    }

    /// Ends all, callers before those whom they call. The first that did not end well is the
    /// error.
    pub(super) async fn stop(self) -> Result<()> {
        let mut ended = Ok(());
        for member in self.members {
            ended = ended.and(member.service.stop().await);
        }
        ended
    }
}

fn start(
    name: &'static str,
    work: &std::path::Path,
    args: &[OsString],
    variables: &[(&'static str, OsString)],
) -> Result<Service> {
    let args: Vec<&OsStr> = args.iter().map(OsString::as_os_str).collect();
    let variables: Vec<_> =
        variables.iter().map(|(name, value)| (*name, value.as_os_str())).collect();
    Service::start_with(name, work, &args, &variables)
}

async fn ready(http: &Http, member: &mut Member) -> Result<()> {
    let since = Instant::now();
    loop {
        match http.get(member.http, "/readyz").await {
            Ok(answer) if answer.status.is_success() => return Ok(()),
            _ => member.service.still_starting(since).await?,
        }
    }
}
