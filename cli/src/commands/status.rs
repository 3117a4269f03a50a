//! `rulecast status` and `rulecast clients`: what a plane knows, over its socket.

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context, Result};
use rulecast_api::proto::admin::v1::{
    Client, GetStatusRequest, GetStatusResponse, ListClientsRequest, Problem, RuleStatus, Verdict,
};

use crate::{admin, output::line, table};

#[derive(clap::Args)]
struct Socket {
    /// The plane's Unix socket
    #[arg(long, env = "RULECAST_DDS_ADMIN_SOCKET", default_value = "rulecast-dds.sock")]
    socket: PathBuf,
}

/// Rules with how many clients should have them, hold them, refused them.
///
/// Exit status 1 when the plane is not ready, a document is refused, or a client refused a rule.
#[derive(clap::Args)]
pub(crate) struct Status {
    /// Only this rule, "<name>/<namespace>"
    key: Option<String>,
    #[command(flatten)]
    socket: Socket,
}

impl Status {
    pub(crate) async fn run(self) -> Result<ExitCode> {
        let mut plane = admin::connect(&self.socket.socket).await?;
        let request = GetStatusRequest { key: self.key.clone().unwrap_or_default() };
        let status = plane.get_status(request).await.context("the plane refused")?.into_inner();
        if let (Some(key), true) = (&self.key, status.rules.is_empty()) {
            anyhow::bail!("no rule {key} here; `rulecast status` lists all of them");
        }
        crate::output::out!("{}", show_status(&status));
        let fine = status.ready
            && status.problems.is_empty()
            && status.rules.iter().all(|rule| rule.rejected == 0);
        Ok(if fine { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

fn show_status(status: &GetStatusResponse) -> String {
    let mut out = format!(
        "revision {} of lineage {}, {} clients, {}\n",
        status.revision,
        status.lineage,
        status.clients,
        if status.ready {
            "ready".to_owned()
        } else {
            format!("NOT READY: {}", status.blockers.join("; "))
        },
    );
    let rows: Vec<Vec<String>> = status
        .rules
        .iter()
        .map(|rule| {
            vec![
                kind(&rule.r#type).to_owned(),
                rule.key.clone(),
                rule.enabled.to_string(),
                rule.accepted.to_string(),
                rule.matched.to_string(),
                rule.applied.to_string(),
                rule.rejected.to_string(),
                rule.revision.to_string(),
                rule.origin.clone(),
            ]
        })
        .collect();
    let head = [
        "KIND", "KEY", "ENABLED", "ACCEPTED", "MATCHED", "APPLIED", "REJECTED", "REVISION",
        "ORIGIN",
    ];
    out += &table::render(&head, &rows);
    for rule in &status.rules {
        for rejection in &rule.rejections {
            let text =
                format!("{} refused by {}: {}", rule.key, rejection.client, rejection.reason);
            out += &line(&text);
            out.push('\n');
        }
    }
    for text in status.rules.iter().filter_map(show_verdicts) {
        out += &line(&text);
        out.push('\n');
    }
    for problem in &status.problems {
        out += &show_problem(problem);
        out.push('\n');
    }
    out
}

/// One line: what a rule made of calls, as far as clients reported it.
pub(crate) fn show_verdicts(rule: &RuleStatus) -> Option<String> {
    let (mut calls, mut did, mut opened) = (0u64, Vec::new(), None);
    for Verdict { verdict, count, .. } in rule.verdicts.iter().filter(|given| given.count > 0) {
        match verdict.as_str() {
            "skipped" | "would_skip" => {}
            "applied" => did.push(format!("applied to {count}")),
            "would_apply" => did.push(format!("would apply to {count}")),
            // Of breakers, not of calls.
            "opened" => opened = Some(format!("opened {count} times")),
            "would_open" => opened = Some(format!("would open {count} times")),
            other => did.push(format!("{} {count}", other.replace('_', " "))),
        }
        if !verdict.ends_with("open") && verdict != "opened" {
            calls = calls.saturating_add(*count);
        }
    }
    let did = match (did.is_empty(), rule.shadow) {
        (false, _) => did.join(", "),
        (true, false) => "did nothing in any".to_owned(),
        (true, true) => "would do nothing in any".to_owned(),
    };
    let of_calls = (calls > 0).then(|| format!("{did} of {calls} calls"));
    let said: Vec<String> = of_calls.into_iter().chain(opened).collect();
    if said.is_empty() {
        return None;
    }
    let shadow = if rule.shadow { " (shadow)" } else { "" };
    let said = said.join("; ");
    let mut text = format!("{} {}{shadow}: {said}", kind(&rule.r#type), rule.key);
    let samples = rule.verdicts.iter().filter(|given| !given.sample.is_empty());
    if let Some(last) = samples.max_by_key(|given| given.sampled_at) {
        text += &format!("; last: {}", last.sample);
    }
    Some(text)
}

/// One line: where, what, what would be right, and what stays in force.
pub(crate) fn show_problem(problem: &Problem) -> String {
    let mut out = problem.file.clone();
    if problem.line > 0 {
        out += &format!(":{}:{}", problem.line, problem.column);
    }
    if !out.is_empty() {
        out += ": ";
    }
    out += &problem.code;
    if !problem.field.is_empty() {
        out += &format!(" {}", problem.field);
    }
    out += &format!(": {}", problem.message);
    if !problem.hint.is_empty() {
        out += &format!("; {}", problem.hint);
    }
    if problem.last_good_in_force {
        out += " (the last good version stays in force)";
    }
    line(&out)
}

fn kind(type_name: &str) -> &str {
    type_name.rsplit('/').next().unwrap_or(type_name)
}

/// Connected clients: who they are, what they hold, what they refused.
#[derive(clap::Args)]
pub(crate) struct Clients {
    #[command(flatten)]
    socket: Socket,
}

impl Clients {
    pub(crate) async fn run(self) -> Result<ExitCode> {
        let mut plane = admin::connect(&self.socket.socket).await?;
        let clients = plane.list_clients(ListClientsRequest {}).await?.into_inner().clients;
        crate::output::out!("{}", show_clients(&clients));
        Ok(ExitCode::SUCCESS)
    }
}

fn show_clients(clients: &[Client]) -> String {
    let mut rows = Vec::new();
    let mut refused = String::new();
    for client in clients {
        for held in &client.kinds {
            rows.push(vec![
                client.spiffe_id.clone(),
                client.instance.clone(),
                client.peer.clone(),
                kind(&held.r#type).to_owned(),
                held.state.clone(),
                held.acked_revision.to_string(),
            ]);
            for rule in &held.rejected {
                let text = format!("{} refused {}: {}", client.instance, rule.key, rule.reason);
                refused += &line(&text);
                refused.push('\n');
            }
        }
    }
    table::render(&["IDENTITY", "INSTANCE", "PEER", "KIND", "STATE", "REVISION"], &rows) + &refused
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shadow_rule_s_line_says_what_it_would_do() {
        let given = |verdict: &str, count, sample: &str, sampled_at| Verdict {
            verdict: verdict.into(),
            count,
            sample: sample.into(),
            sampled_at,
        };
        let mut rule = RuleStatus {
            r#type: "dubbo.apache.org/v1alpha1/AuthorizationPolicy".into(),
            key: "orders/shop".into(),
            shadow: true,
            ..RuleStatus::default()
        };
        assert_eq!(show_verdicts(&rule), None);
        rule.verdicts = vec![given("would_skip", 7, "", 0)];
        assert_eq!(
            show_verdicts(&rule).expect("a line"),
            "AuthorizationPolicy orders/shop (shadow): would do nothing in any of 7 calls"
        );
        rule.verdicts = vec![
            given("would_skip", 4441, "", 0),
            given("would_apply", 3, "would leave 2 of 8 endpoints", 1),
            given("would_deny", 123, "would deny GET /orders of spiffe://td/ns/a/app/b", 2),
        ];
        assert_eq!(
            show_verdicts(&rule).expect("a line"),
            "AuthorizationPolicy orders/shop (shadow): would apply to 3, would deny 123 of 4567 \
             calls; last: would deny GET /orders of spiffe://td/ns/a/app/b"
        );
        rule.shadow = false;
        rule.verdicts = vec![given("applied", 2, "", 0), given("failed", 1, "", 0)];
        assert_eq!(
            show_verdicts(&rule).expect("a line"),
            "AuthorizationPolicy orders/shop: applied to 2, failed 1 of 3 calls"
        );
        rule.verdicts = vec![given("opened", 2, "opened 10.0.0.1:80 of orders", 1)];
        assert_eq!(
            show_verdicts(&rule).expect("a line"),
            "AuthorizationPolicy orders/shop: opened 2 times; last: opened 10.0.0.1:80 of orders"
        );
    }
}
