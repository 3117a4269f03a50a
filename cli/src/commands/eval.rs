//! `rulecast eval`: one call decided by files, with the reasons.

use std::{
    collections::BTreeMap,
    fs,
    io::Read as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Result, bail};
use rulecast_api::{
    Resource,
    kind::KINDS,
    manifest::{self, Format, Problem},
    proto::rules::v1::Rule,
};
use rulecast_sdk::{
    decision::{Explanation, Policies, Request, RuleSet},
    endpoints::{Endpoint, EndpointSet, Params},
};
use serde::Deserialize;

use crate::table;

/// Decide one call by files of rules, as an application would, and say why.
#[derive(clap::Args)]
pub(crate) struct Eval {
    /// File of rules; may be given several times
    #[arg(short = 'f', long = "file", required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The call: {"service", "method", "args", "attachments", "consumer", "draw"}
    #[arg(long, value_name = "FILE")]
    request: PathBuf,
    /// What may be called: a list of parameter maps with host and port
    #[arg(long, value_name = "FILE")]
    endpoints: Option<PathBuf>,
    /// Say which conditions matched and why, and which draw was used
    #[arg(long)]
    explain: bool,
}

/// Largest file of a request or of endpoints, in bytes.
const MAX_JSON: usize = 64 << 20;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Call {
    service: String,
    #[serde(default)]
    method: String,
    #[serde(default)]
    args: Vec<serde_json::Value>,
    #[serde(default)]
    attachments: BTreeMap<String, String>,
    #[serde(default)]
    consumer: BTreeMap<String, serde_json::Value>,
    /// Repeats a decision; a fresh one otherwise.
    draw: Option<u64>,
}

impl Eval {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let mut rules = Vec::new();
        let mut seen = BTreeMap::new();
        for file in &self.files {
            for resource in read_rules(file)? {
                if let Some(first) = seen.insert(resource.id.clone(), file) {
                    bail!(
                        "RC0107: {} is written more than once: in {} and in {}; keep one",
                        resource.id,
                        first.display(),
                        file.display()
                    );
                }
                if resource.spec.enabled() {
                    rules.push(delivered(&resource));
                } else {
                    crate::output::outln!("{} is not enabled and does nothing", resource.id);
                }
            }
        }
        let call: Call = read_json(&self.request)?;
        let endpoints = match &self.endpoints {
            Some(path) => read_endpoints(path)?,
            None => Vec::new(),
        };
        let set = EndpointSet::new(endpoints.clone())?;
        let mut request = Request::owned(call.service.as_str(), params(&call.consumer))
            .method(call.method.as_str());
        for argument in &call.args {
            request = request.argument(text(argument));
        }
        for (name, value) in &call.attachments {
            request = request.attachment(name.as_str(), value.as_str());
        }
        if let Some(draw) = call.draw {
            request = request.draw(draw);
        }

        let policies = Policies::builtin()?;
        let rules = RuleSet::new(None, &rules);
        let Explanation { decision, text: reasons } = policies.explain(&rules, &request, &set);
        let rows: Vec<Vec<String>> = decision
            .rules
            .iter()
            .map(|rule| {
                vec![rule.key.to_string(), rule.effect.to_string(), rule.remaining.to_string()]
            })
            .collect();
        crate::output::out!("{}", table::render(&["RULE", "EFFECT", "REMAINING"], &rows));
        if self.explain {
            crate::output::outln!("\n{}", reasons.trim_end());
            match decision.draw {
                Some(draw) => crate::output::outln!("draw {draw}"),
                None => crate::output::outln!("no draw: chance played no part"),
            }
        }
        crate::output::outln!(
            "\n{} of {} endpoints remain",
            decision.endpoints.len(),
            endpoints.len()
        );
        for at in &decision.endpoints {
            if let Some(endpoint) = endpoints.get(*at as usize) {
                let params: Vec<String> = endpoint
                    .params()
                    .iter()
                    .map(|(name, value)| format!("{name}={value}"))
                    .collect();
                crate::output::outln!("  {}", params.join(" "));
            }
        }
        for fault in &decision.faults {
            let rule = fault.key.as_deref().unwrap_or("all rules");
            crate::output::outln!("FAULT in {rule}: {}", fault.fault);
        }
        Ok(if decision.faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// The rule as a plane would deliver it to a caller in its own namespace.
fn delivered(resource: &Resource) -> Rule {
    Rule {
        key: resource.id.key(),
        target: resource.spec.target(),
        tier: rulecast_dds::scope::TIER_OWN,
        priority: resource.spec.priority(),
        enforcement: resource.enforcement() as i32,
        spec: resource.spec.encode(),
        created: resource.created,
    }
}

/// Reads a file of rules; all that is wrong with it when something is.
fn read_rules(path: &Path) -> Result<Vec<Resource>> {
    let bytes = read(path, manifest::MAX_FILE)?;
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let format = Format::of(name).with_context(|| {
        format!(
            "RC0302: {} is no rule file; its name should end in .yaml, .yml or .json",
            path.display()
        )
    })?;
    let manifest = manifest::parse(KINDS, &bytes, format);
    let problems: Vec<String> = manifest.problems().map(|problem| show(path, problem)).collect();
    if !problems.is_empty() {
        bail!("{}", problems.join("\n"));
    }
    if manifest.documents.is_empty() {
        bail!("RC0302: {} holds no rule; write one, or leave the file out", path.display());
    }
    Ok(manifest.documents.into_iter().filter_map(|document| document.outcome.ok()).collect())
}

/// Reads a file, and a little more than `limit` of one that is longer.
fn read(path: &Path, limit: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    fs::File::open(path)
        .and_then(|file| file.take(limit as u64 + 1).read_to_end(&mut bytes))
        .with_context(|| format!("RC0302: cannot read {}", path.display()))?;
    Ok(bytes)
}

fn show(path: &Path, problem: &Problem) -> String {
    let space = if problem.field.is_empty() { "" } else { " " };
    format!(
        "{}:{}:{}: {}{space}{}: {}; {}",
        path.display(),
        problem.line,
        problem.column,
        problem.code,
        problem.field,
        problem.message,
        problem.hint
    )
}

fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T> {
    let bytes = read(path, MAX_JSON)?;
    if bytes.len() > MAX_JSON {
        bail!("RC0701: {} has more than {MAX_JSON} bytes; give less", path.display());
    }
    serde_json::from_slice(&bytes).with_context(|| {
        format!("RC0701: {} is not as `rulecast eval --help` says", path.display())
    })
}

/// Reads a list of parameter maps, each with host and port.
pub(crate) fn read_endpoints(path: &Path) -> Result<Vec<Endpoint>> {
    let maps: Vec<BTreeMap<String, serde_json::Value>> = read_json(path)?;
    Ok(maps.iter().map(|map| Endpoint::from_params(params(map))).collect())
}

fn text(value: &serde_json::Value) -> String {
    match value {
        serde_json::Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn params(map: &BTreeMap<String, serde_json::Value>) -> Params {
    map.iter().map(|(name, value)| (name.clone(), text(value))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(files: Vec<PathBuf>) -> String {
        let eval = Eval { files, request: "/dev/null".into(), endpoints: None, explain: false };
        format!("{:#}", eval.run().expect_err("refused"))
    }

    #[test]
    fn files_that_a_plane_would_refuse_are_refused() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let write = |name: &str, text: &str| -> Result<PathBuf> {
            let path = folder.path().join(name);
            fs::write(&path, text)?;
            Ok(path)
        };
        let rule = "apiVersion: dubbo.apache.org/v1alpha1\nkind: ConditionRoute\n\
                    metadata: {name: a, namespace: b}\n\
                    spec: {configVersion: v3.0, scope: service, key: com.A, conditions: [=> a=b]}\n";
        let (one, two) = (write("one.yaml", rule)?, write("two.yaml", rule)?);
        let error = refused(vec![one, two]);
        assert!(error.contains("RC0107") && error.contains("two.yaml"), "{error}");
        assert!(refused(vec![write("empty.yaml", "# nothing\n")?]).contains("holds no rule"));
        assert!(refused(vec![write("rule.txt", rule)?]).contains("should end in .yaml"));
        assert!(refused(vec![folder.path().join("missing.yaml")]).contains("RC0302: cannot read"));
        let broken = refused(vec![write("broken.yaml", "a: [")?]);
        assert!(broken.contains("RC0101: "), "{broken}");
        Ok(())
    }
}
