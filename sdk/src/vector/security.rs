//! Vectors of the kinds that a server's own calls and connections are decided by: from the spec
//! as written, by what the plane leaves of it for the server, to what the server decides.

use std::{collections::BTreeMap, net::IpAddr};

use rulecast_api::{
    Kind,
    kind::{Projection, Subject},
    proto::rules::v1::{Enforcement, Rule},
};
use serde_json::Value;

use super::{first, text};
use crate::decision::{Headers, Inbound, Policies, RuleSet};

/// The namespace whose policies are everybody's.
const ROOT: &str = "rulecast-system";

/// What a case expects of a refused spec, or `None` when it expects a decision.
pub(super) fn refused(kind: Kind, case: &Value) -> Option<Result<(), String>> {
    let path = case["expect_error"].as_str()?;
    let errors = match (kind.parse)(case["spec"].clone()) {
        Ok(_) => return Some(Err("the spec was accepted".to_owned())),
        Err(errors) => errors,
    };
    let named = errors.iter().any(|error| error.path == path);
    Some(named.then_some(()).ok_or_else(|| format!("refused: {}", first(&errors))))
}

/// Runs a case of AuthorizationPolicy.
pub(super) fn authorization(policies: &Policies, case: &Value) -> Result<(), String> {
    let kind = Kind::AUTHORIZATION_POLICY;
    if let Some(result) = refused(kind, case) {
        return result;
    }
    let rules = RuleSet::default().with(kind.type_name, delivered(kind, case)?);
    let decide = |draw| with_call(case, draw, |call| policies.authorize(&rules, call));
    if let Some(share) = case["expect_share"].as_f64() {
        let allowed = (0..2000).filter(|n| decide(rulecast_policy::draw::mix(*n)).is_allowed());
        let percent = allowed.count() as f64 / 20.0;
        return ((percent - share).abs() < 4.0)
            .then_some(())
            .ok_or_else(|| format!("{percent} % are allowed, expected {share} %"));
    }
    let expected = case["expect"].as_str().ok_or("the case has no expect")?;
    // Without chance all draws decide the same; a few show that.
    for draw in [0, u64::MAX / 3, u64::MAX] {
        let decision = decide(draw);
        if let Some(fault) = decision.faults.first() {
            return Err(fault.fault.to_string());
        }
        let key = decision.reason.key().unwrap_or("");
        let by = case["by"].as_str().unwrap_or(key);
        let noted: Vec<&str> = decision.noted.iter().map(|noted| &*noted.key).collect();
        let wanted: Vec<&str> =
            case["noted"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let would = case["would_deny"].as_bool().unwrap_or(false);
        let verdict = if decision.is_allowed() { "allow" } else { "deny" };
        if (verdict, key, &noted, decision.would_deny.is_some()) != (expected, by, &wanted, would) {
            return Err(format!("{decision}; noted {noted:?}; expected {expected} {by}"));
        }
    }
    Ok(())
}

/// Runs a case of AuthenticationPolicy.
pub(super) fn authentication(policies: &Policies, case: &Value) -> Result<(), String> {
    let kind = Kind::AUTHENTICATION_POLICY;
    if let Some(result) = refused(kind, case) {
        return result;
    }
    let rules = RuleSet::default().with(kind.type_name, delivered(kind, case)?);
    let ports = case["expect"].as_object().ok_or("the case has no expect")?;
    for (port, mode) in ports {
        let number = port.parse().map_err(|_| format!("{port} is no port"))?;
        let found = format!("{:?}", policies.authenticate(&rules, number)).to_uppercase();
        let found = if found == "UNDECIDED" { "NONE" } else { &found };
        if Some(found) != mode.as_str() {
            return Err(format!("port {port}: {found}, expected {mode}"));
        }
    }
    Ok(())
}

/// The policies of a case as its server gets them.
pub(super) fn delivered(kind: Kind, case: &Value) -> Result<Vec<Rule>, String> {
    let server = &case["server"];
    let map = |field: &str| -> BTreeMap<String, String> {
        let pairs = server[field].as_object().into_iter().flatten();
        pairs.map(|(name, value)| (name.clone(), text(value))).collect()
    };
    let namespace = server["namespace"].as_str().unwrap_or("default");
    let identity = format!("cluster.local/ns/{namespace}/sa/server");
    let addresses: Vec<IpAddr> = server["addresses"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|address| text(address).parse().map_err(|_| format!("{address} is no address")))
        .collect::<Result<_, _>>()?;
    let subject = Subject {
        namespace,
        workload: "server",
        identity: server["identity"].as_str().unwrap_or(&identity),
        labels: &map("labels"),
        annotations: &map("annotations"),
        addresses: &addresses,
    };
    let mut rules = Vec::new();
    for (i, policy) in case["policies"].as_array().into_iter().flatten().enumerate() {
        let spec = (kind.parse)(policy["spec"].clone()).map_err(|errors| first(&errors))?;
        if !spec.enabled() {
            continue;
        }
        let home = policy["namespace"].as_str().unwrap_or(ROOT);
        let root = home == ROOT;
        let bytes = match spec.project(&subject, (!root).then_some(home)) {
            Projection::Whole => spec.encode(),
            Projection::Spec(bytes) => bytes,
            Projection::Nothing => continue,
        };
        let name = policy["name"].as_str().map_or_else(|| format!("p{i}"), str::to_owned);
        let shadow = policy["shadow"].as_bool().unwrap_or(false);
        let enforcement = if shadow { Enforcement::Shadow } else { Enforcement::Enforce };
        rules.push(Rule {
            key: format!("{name}/{home}"),
            target: None,
            tier: if root { 0 } else { 2 },
            priority: spec.priority(),
            enforcement: enforcement.into(),
            spec: bytes.to_vec().into(),
            created: policy["created"].as_i64().unwrap_or(0),
        });
    }
    Ok(rules)
}

/// Headers of a case.
struct Pairs<'a>(Vec<(&'a str, &'a str)>);

impl Headers for Pairs<'_> {
    fn get(&self, name: &str) -> Option<&[u8]> {
        let found = self.0.iter().find(|(n, _)| n.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_bytes())
    }
}

/// The call of a case.
pub(super) fn with_call<T>(case: &Value, draw: u64, run: impl FnOnce(&Inbound<'_>) -> T) -> T {
    let call = &case["call"];
    let pairs = |field: &str| -> Vec<(&str, &str)> {
        let pairs = call[field].as_object().into_iter().flatten();
        pairs.filter_map(|(name, value)| Some((name.as_str(), value.as_str()?))).collect()
    };
    let (headers, extensions) = (Pairs(pairs("headers")), pairs("extensions"));
    let mut inbound = Inbound::new().headers(&headers).extensions(&extensions).draw(draw);
    type Set = for<'a> fn(Inbound<'a>, &'a str) -> Inbound<'a>;
    let fields: [(&str, Set); 7] = [
        ("method", |call, text| call.method(text)),
        ("path", |call, text| call.path(text)),
        ("principal", |call, text| call.principal(text)),
        ("namespace", |call, text| call.namespace(text)),
        ("source_application", |call, text| call.source_application(text)),
        ("application", |call, text| call.application(text)),
        ("request_id", |call, text| call.request_id(text)),
    ];
    for (field, set) in fields {
        if let Some(value) = call[field].as_str() {
            inbound = set(inbound, value);
        }
    }
    if let Some(Ok(ip)) = call["ip"].as_str().map(str::parse) {
        inbound = inbound.ip(ip);
    }
    if let Some(port) = call["port"].as_u64() {
        inbound = inbound.port(port as u16);
    }
    run(&inbound)
}
