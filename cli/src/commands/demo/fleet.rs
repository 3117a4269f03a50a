//! The applications of the demo: real SDK clients, each with its own connection,
//! key and certificate, all calling one service.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use rulecast_sdk::{
    client::{Client, Startup},
    endpoints::{Endpoint, EndpointSet},
    status::Status,
};
use tokio::sync::watch;

use super::plane::Site;

/// What the fleet calls.
pub(super) const SERVICE: &str = "com.example.OrderService";
/// Who calls.
pub(super) const APPLICATION: &str = "shop-frontend";
/// Where the caller lives.
pub(super) const NAMESPACE: &str = "shop";

/// A member's version and region.
const MEMBERS: [(&str, &str); 4] =
    [("v1", "hangzhou"), ("v1", "beijing"), ("v2", "hangzhou"), ("v2", "beijing")];

/// The endpoints: name, region, version, env, tag.
const ENDPOINTS: [(&str, [&str; 4]); 8] = [
    ("orders-1", ["hangzhou", "1.0", "prod", ""]),
    ("orders-2", ["hangzhou", "1.0", "prod", "blue"]),
    ("orders-3", ["hangzhou", "2.0", "prod", ""]),
    ("orders-4", ["hangzhou", "2.0", "gray", "green"]),
    ("orders-5", ["beijing", "1.0", "prod", ""]),
    ("orders-6", ["beijing", "1.0", "prod", "blue"]),
    ("orders-7", ["beijing", "2.0", "prod", ""]),
    ("orders-8", ["beijing", "2.0", "gray", "green"]),
];

struct Member {
    name: String,
    version: &'static str,
    region: &'static str,
    state: PathBuf,
    token: String,
    client: Client,
}

/// How the calls of one client spread.
pub(super) struct Spread {
    /// Calls by endpoint, in the order of `ENDPOINTS`.
    pub(super) calls: Vec<u32>,
    /// Calls that no endpoint may answer.
    pub(super) none: u32,
    /// Decisions in which something broke.
    pub(super) faults: u32,
}

impl Spread {
    fn parameter(endpoint: usize, key: &str) -> &'static str {
        let values = &ENDPOINTS[endpoint].1;
        match key {
            "region" => values[0],
            "version" => values[1],
            "env" => values[2],
            _ => values[3],
        }
    }

    /// Whether calls went to endpoints with this parameter, to nobody else, and none failed.
    pub(super) fn only(&self, key: &str, value: &str) -> bool {
        self.none == 0
            && self.faults == 0
            && self
                .calls
                .iter()
                .enumerate()
                .all(|(at, calls)| (*calls > 0) == (Self::parameter(at, key) == value))
    }

    /// Whether every endpoint got calls, and none failed.
    pub(super) fn all_endpoints(&self) -> bool {
        self.none == 0 && self.faults == 0 && self.calls.iter().all(|calls| *calls > 0)
    }
}

/// All clients.
pub(super) struct Fleet {
    site_ca: String,
    site_dds: String,
    members: Vec<Member>,
    endpoints: EndpointSet,
    /// Counts changes of any client's state.
    changed: watch::Sender<u64>,
}

impl Fleet {
    /// Connects every member; each joins with a token of its own.
    pub(super) async fn start(site: &Site, tokens: Vec<String>) -> Result<Self> {
        let endpoints = ENDPOINTS
            .iter()
            .enumerate()
            .map(|(at, (_, [region, version, env, tag]))| {
                let mut endpoint = Endpoint::new(format!("10.0.0.{}", at + 1), 20880)
                    .with("region", *region)
                    .with("version", *version)
                    .with("env", *env)
                    .with("application", "order-service");
                if !tag.is_empty() {
                    endpoint = endpoint.with("tag", *tag);
                }
                endpoint
            })
            .collect::<Vec<_>>();
        let mut fleet = Self {
            site_ca: site.ca.to_string(),
            site_dds: site.dds.to_string(),
            members: Vec::new(),
            endpoints: EndpointSet::new(endpoints)?,
            changed: watch::Sender::new(0),
        };
        let mut joining = Vec::new();
        for (at, ((version, region), token)) in MEMBERS.into_iter().zip(tokens).enumerate() {
            let name = format!("{APPLICATION}-{version}-{}", if at % 2 == 0 { 'a' } else { 'b' });
            let state = site.work.join("clients").join(&name);
            joining.push(async {
                let client =
                    connect(&fleet.site_ca, &fleet.site_dds, version, region, &state, &token)
                        .await
                        .with_context(|| format!("client {name}"))?;
                anyhow::Ok(Member { name, version, region, state, token, client })
            });
        }
        let mut members = Vec::new();
        for member in joining {
            members.push(member.await?);
        }
        for member in &members {
            fleet.follow(&member.client);
        }
        fleet.members = members;
        Ok(fleet)
    }

    fn follow(&self, client: &Client) {
        let (mut changes, changed) = (client.changes(), self.changed.clone());
        tokio::spawn(async move {
            while changes.changed().await.is_ok() {
                changed.send_modify(|count| *count += 1);
            }
        });
    }

    /// How many tokens `start` needs.
    pub(super) const fn size() -> usize {
        MEMBERS.len()
    }

    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    /// Follows changes of any client, from now on.
    pub(super) fn changed(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Makes `calls` calls with every client, each to a random one of the endpoints that it may use.
    pub(super) fn spreads(&self, calls: u32) -> Vec<Spread> {
        self.members
            .iter()
            .map(|member| {
                let request = member.client.request(SERVICE).method("getOrder");
                let mut spread = Spread { calls: vec![0; ENDPOINTS.len()], none: 0, faults: 0 };
                for _ in 0..calls {
                    let decision = member.client.route(&request, &self.endpoints);
                    spread.faults += u32::from(!decision.faults.is_empty());
                    let kept = &decision.endpoints;
                    match kept.get(fastrand::usize(..kept.len().max(1))) {
                        Some(at) => spread.calls[*at as usize] += 1,
                        None => spread.none += 1,
                    }
                }
                spread
            })
            .collect()
    }

    /// What each client holds; clients that hold the same on one line.
    pub(super) fn holds(&self) -> String {
        let mut holds: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for member in &self.members {
            holds.entry(held(&member.client.status())).or_default().push(&member.name);
        }
        let mut out = String::new();
        for (what, who) in holds {
            // Writing to a string cannot fail.
            let _ = writeln!(out, "  {}: {what}", who.join(", "));
        }
        out
    }

    /// What each client holds, and how its calls spread.
    pub(super) fn show(&self) -> String {
        const CALLS: u32 = 2_000;
        let mut out = self.holds();
        let mut head = vec!["CLIENT"];
        head.extend(ENDPOINTS.iter().map(|(name, _)| *name));
        head.push("NONE");
        let mut rows = vec![
            label("  region", |values| values[0]),
            label("  version", |values| values[1]),
            label("  env", |values| values[2]),
        ];
        for (member, spread) in self.members.iter().zip(self.spreads(CALLS)) {
            let share = |calls: u32| match calls {
                0 => "-".to_owned(),
                calls => format!("{:.1} %", f64::from(calls) * 100.0 / f64::from(CALLS)),
            };
            let mut row = vec![format!("{} ({})", member.name, member.region)];
            row.extend(spread.calls.iter().map(|calls| share(*calls)));
            row.push(share(spread.none));
            rows.push(row);
        }
        out += &crate::table::render(&head, &rows);
        out
    }

    /// Waits until the status of every client is as `right` says.
    pub(super) async fn wait_all(
        &self,
        limit: Duration,
        right: impl Fn(&Status) -> bool,
    ) -> Result<()> {
        let since = Instant::now();
        for member in &self.members {
            let mut changes = member.client.changes();
            let left = limit.saturating_sub(since.elapsed());
            match tokio::time::timeout(left, changes.wait_for(|status| right(status))).await {
                Ok(Ok(_)) => {}
                _ => bail!(
                    "client {} does not come to it within {limit:?}: {:?}",
                    member.name,
                    member.client.status()
                ),
            }
        }
        Ok(())
    }

    /// The revision of every client's rules.
    pub(super) fn revisions(&self) -> Vec<i64> {
        self.members
            .iter()
            .map(|member| {
                member.client.status().kinds.iter().map(|kind| kind.revision).max().unwrap_or(0)
            })
            .collect()
    }

    /// Ends one client and starts it anew from its state folder.
    pub(super) async fn restart(&mut self, at: usize) -> Result<()> {
        let member = &mut self.members[at];
        member.client.shutdown().await;
        member.client = connect(
            &self.site_ca,
            &self.site_dds,
            member.version,
            member.region,
            &member.state,
            &member.token,
        )
        .await?;
        self.follow(&self.members[at].client);
        Ok(())
    }

    pub(super) async fn shutdown(self) {
        for member in self.members {
            member.client.shutdown().await;
        }
    }
}

async fn connect(
    ca: &str,
    plane: &str,
    version: &str,
    region: &str,
    state: &std::path::Path,
    token: &str,
) -> Result<Client> {
    Ok(Client::builder()
        .ca(ca)
        .plane(plane)
        .join_token(token)
        .namespace(NAMESPACE)
        .application(APPLICATION)
        .parameter("version", version)
        .parameter("region", region)
        .service(SERVICE)
        .state_dir(state)
        .startup(Startup::Wait)
        .connect()
        .await?)
}

fn label(name: &str, of: impl Fn(&[&'static str; 4]) -> &'static str) -> Vec<String> {
    let mut row = vec![name.to_owned()];
    row.extend(ENDPOINTS.iter().map(|(_, values)| of(values).to_owned()));
    row
}

fn held(status: &Status) -> String {
    let mut out = Vec::new();
    for kind in &status.kinds {
        let name = kind.type_name.rsplit('/').next().unwrap_or_default();
        let mut text = format!("{name} revision {}, {} accepted", kind.revision, kind.items);
        for rejected in &kind.rejected {
            let _ = write!(text, ", REJECTED {}: {}", rejected.key, rejected.reason);
        }
        out.push(text);
    }
    if !status.connected {
        out.push("plane not reachable".into());
    }
    out.join("; ")
}
