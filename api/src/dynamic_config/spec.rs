use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use prost::Message as _;
use serde_json::{Map, Value, json};

use crate::{
    fields::{Errors, Scope, present, show},
    kind::{FieldError, RuleSpec},
    matcher::{AddressMatch, MAX_TEXT, ParamMatch, StringMatch},
    proto::{
        dubbo::v1alpha1 as dubbo,
        rules::v1::{self as wire, Target, r#override},
    },
};

/// Most parameters of an entry.
pub const MAX_PARAMETERS: usize = 100;

/// What an older list says for anything.
const ANY: &str = "*";
const ANY_HOST: &str = "0.0.0.0";

/// On which side of calls an entry works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The caller's.
    Consumer,
    /// The endpoint's.
    Provider,
}

impl Side {
    /// As written.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Consumer => "consumer",
            Self::Provider => "provider",
        }
    }

    fn to_wire(self) -> r#override::Side {
        match self {
            Self::Consumer => r#override::Side::Consumer,
            Self::Provider => r#override::Side::Provider,
        }
    }
}

/// For which calls and endpoints an entry is; every part must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// The address of the one that the parameters are for.
    pub address: Option<AddressMatch>,
    /// Any of these services; `None`: any service.
    pub services: Option<Vec<StringMatch>>,
    /// Any of these applications; `None`: any application.
    pub applications: Option<Vec<StringMatch>>,
    /// All of these parameters.
    pub params: Vec<ParamMatch>,
}

/// An entry: some parameters, and what they are for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// `None`: both.
    pub side: Option<Side>,
    /// Never empty.
    pub parameters: BTreeMap<String, String>,
    /// Decides only where there is a type.
    pub enabled: bool,
    /// Empty for the general type, which goes by the rule's `enabled`.
    pub kind: String,
    /// The newer form.
    pub matches: Option<Match>,
    /// `host` or `host:port` of the one that the parameters are for; none: any.
    pub addresses: Vec<String>,
    /// The same of the endpoint; none: any.
    pub provider_addresses: Vec<String>,
    /// None: any.
    pub applications: Vec<String>,
    /// None: any.
    pub services: Vec<String>,
}

/// The spec of a DynamicConfig: parameters for calls and endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DynamicConfigSpec {
    /// Of the entries without a type.
    pub enabled: bool,
    /// A service key or an application's name; empty only when read leniently.
    pub key: String,
    /// What `key` names; `None` only when read leniently: all calls.
    pub scope: Option<Scope>,
    /// In the order of their application: later ones win.
    pub configs: Vec<Config>,
}

impl DynamicConfigSpec {
    /// Parses and validates the `spec` of a manifest; all errors at once, in document order.
    pub fn parse(value: Value) -> Result<Arc<dyn RuleSpec>, Vec<FieldError>> {
        Self::read(&value, false).map(|spec| Arc::new(spec) as Arc<dyn RuleSpec>)
    }

    /// As [`DynamicConfigSpec::parse`], but `key`, `scope` and `configVersion` may be missing.
    pub fn parse_lenient(value: &Value) -> Result<Self, Vec<FieldError>> {
        Self::read(value, true)
    }

    fn read(value: &Value, lenient: bool) -> Result<Self, Vec<FieldError>> {
        let mut errors = Errors::default();
        let spec = Self::read_fields(value, lenient, &mut errors);
        match spec {
            Some(spec) if errors.0.is_empty() => Ok(spec),
            _ => Err(errors.0),
        }
    }

    fn read_fields(value: &Value, lenient: bool, errors: &mut Errors) -> Option<Self> {
        const FIELDS: &[&str] = &["configVersion", "enabled", "key", "scope", "configs"];
        let map = errors.object(value, "spec", FIELDS)?;
        errors.version(map, "DynamicConfig", &["v3.0"], lenient);
        let scope = errors.scope(map, lenient);
        let key = errors.key(map, scope, lenient);
        let enabled = errors.flag(map, "spec", "enabled").unwrap_or(true);
        let items = errors.list(present(map, "configs"), "spec.configs").iter().enumerate();
        let configs = items
            .filter_map(|(i, item)| Config::read(item, &format!("spec.configs[{i}]"), errors))
            .collect();
        Some(Self { enabled, key, scope, configs })
    }

    /// The entries that are in force.
    pub fn in_force(&self) -> impl Iterator<Item = &Config> {
        self.configs
            .iter()
            .filter(|config| if config.kind.is_empty() { self.enabled } else { config.enabled })
    }

    /// The message that the policy gets.
    pub fn to_wire(&self) -> wire::DynamicConfig {
        wire::DynamicConfig { configs: self.in_force().map(Config::to_wire).collect() }
    }
}

impl RuleSpec for DynamicConfigSpec {
    fn target(&self) -> Option<Target> {
        Some(self.scope?.target(self.key.clone()))
    }

    /// Also while it is switched off, if an entry with a type is in force.
    fn enabled(&self) -> bool {
        self.enabled || self.in_force().next().is_some()
    }

    fn priority(&self) -> i32 {
        0
    }

    fn encode(&self) -> Bytes {
        self.to_wire().encode_to_vec().into()
    }

    fn compat(&self) -> Option<Bytes> {
        let message = dubbo::DynamicConfig {
            key: self.key.clone(),
            scope: self.scope?.as_str().into(),
            config_version: "v3.0".into(),
            enabled: self.enabled,
            configs: self.configs.iter().map(Config::compat).collect::<Option<_>>()?,
        };
        Some(message.encode_to_vec().into())
    }

    fn to_json(&self) -> Value {
        let mut map = Map::new();
        map.insert("configVersion".into(), "v3.0".into());
        map.insert("enabled".into(), self.enabled.into());
        if let Some(scope) = self.scope {
            map.insert("scope".into(), scope.as_str().into());
        }
        if !self.key.is_empty() {
            map.insert("key".into(), self.key.clone().into());
        }
        map.insert("configs".into(), self.configs.iter().map(Config::to_json).collect());
        Value::Object(map)
    }
}

impl Config {
    fn read(value: &Value, path: &str, errors: &mut Errors) -> Option<Self> {
        const FIELDS: &[&str] = &[
            "side",
            "parameters",
            "enabled",
            "type",
            "match",
            "addresses",
            "providerAddresses",
            "applications",
            "services",
        ];
        let map = errors.object(value, path, FIELDS)?;
        let side = match errors.text(map, path, "side") {
            Some("consumer") => Some(Side::Consumer),
            Some("provider") => Some(Side::Provider),
            Some(other) => {
                let message = "is no side of a call".to_owned();
                errors.invalid(
                    &format!("{path}.side"),
                    other,
                    message,
                    "write consumer or provider",
                );
                None
            }
            None => None,
        };
        let parameters = read_parameters(map, &format!("{path}.parameters"), errors);
        let enabled = errors.flag(map, path, "enabled").unwrap_or(true);
        let kind = errors.text(map, path, "type").unwrap_or_default();
        let kind = if kind == "general" { "" } else { kind };
        let matches = present(map, "match");
        let matches =
            matches.and_then(|value| Match::read(value, &format!("{path}.match"), errors));
        let mut list = |field: &str, any: &str| {
            read_names(present(map, field), &format!("{path}.{field}"), any, errors)
        };
        let addresses = list("addresses", ANY_HOST);
        let provider_addresses = list("providerAddresses", ANY_HOST);
        let applications = list("applications", ANY);
        let services = list("services", ANY);
        if let Some(newer) = &matches {
            let twice = [
                ("services", "service", !services.is_empty() && newer.services.is_some()),
                (
                    "applications",
                    "application",
                    !applications.is_empty() && newer.applications.is_some(),
                ),
            ];
            for (older, newer, _) in twice.into_iter().filter(|(_, _, both)| *both) {
                let message = format!("stands beside match.{newer}");
                let hint = format!("write one of the two; match.{newer} is the newer form");
                errors.invalid(&format!("{path}.{older}"), "", message, &hint);
            }
        }
        Some(Self {
            side,
            parameters,
            enabled,
            kind: kind.to_owned(),
            matches,
            addresses,
            provider_addresses,
            applications,
            services,
        })
    }

    fn to_wire(&self) -> wire::Override {
        let newer = self.matches.as_ref();
        let names = |newer: Option<&Vec<StringMatch>>, older: &[String]| match newer {
            Some(matches) => matches.iter().map(StringMatch::to_wire).collect(),
            None => older.iter().map(|n| StringMatch::Exact(n.clone()).to_wire()).collect(),
        };
        wire::Override {
            side: self.side.map_or(r#override::Side::Unspecified, Side::to_wire) as i32,
            parameters: self
                .parameters
                .iter()
                .map(|(name, value)| wire::Parameter { name: name.clone(), value: value.clone() })
                .collect(),
            address: newer.and_then(|m| m.address.as_ref()).map(AddressMatch::to_wire),
            services: names(newer.and_then(|m| m.services.as_ref()), &self.services),
            applications: names(newer.and_then(|m| m.applications.as_ref()), &self.applications),
            params: newer
                .map_or_else(Vec::new, |m| m.params.iter().map(ParamMatch::to_wire).collect()),
            addresses: self.addresses.clone(),
            provider_addresses: self.provider_addresses.clone(),
        }
    }

    fn compat(&self) -> Option<dubbo::OverrideConfig> {
        Some(dubbo::OverrideConfig {
            side: self.side.map_or("", Side::as_str).to_owned(),
            addresses: self.addresses.clone(),
            provider_addresses: self.provider_addresses.clone(),
            parameters: self.parameters.clone().into_iter().collect(),
            applications: self.applications.clone(),
            services: self.services.clone(),
            r#type: self.kind.clone(),
            enabled: self.enabled,
            r#match: match &self.matches {
                Some(matches) => Some(matches.compat()?),
                None => None,
            },
        })
    }

    fn to_json(&self) -> Value {
        let mut map = Map::new();
        if let Some(side) = self.side {
            map.insert("side".into(), side.as_str().into());
        }
        map.insert("parameters".into(), json!(self.parameters));
        map.insert("enabled".into(), self.enabled.into());
        if !self.kind.is_empty() {
            map.insert("type".into(), self.kind.clone().into());
        }
        if let Some(matches) = &self.matches {
            map.insert("match".into(), matches.to_json());
        }
        for (field, list) in [
            ("addresses", &self.addresses),
            ("providerAddresses", &self.provider_addresses),
            ("applications", &self.applications),
            ("services", &self.services),
        ] {
            if !list.is_empty() {
                map.insert(field.into(), json!(list));
            }
        }
        Value::Object(map)
    }
}

impl Match {
    fn read(value: &Value, path: &str, errors: &mut Errors) -> Option<Self> {
        let fields = &["address", "service", "application", "app", "param"];
        let map = errors.object(value, path, fields)?;
        let address = present(map, "address")
            .map(|value| AddressMatch::read(value, &format!("{path}.address"), errors));
        let mut one_of = |field: &str| {
            let path = format!("{path}.{field}");
            let list = errors.object(present(map, field)?, &path, &["oneof"])?;
            let path = format!("{path}.oneof");
            let items = errors.list(present(list, "oneof"), &path);
            if items.is_empty() {
                let hint = "write an entry, or leave it out: then any will do";
                errors.invalid(&path, "", "names nothing".to_owned(), hint);
            }
            let items = items.iter().enumerate();
            let read = items.map(|(i, v)| StringMatch::read(v, &format!("{path}[{i}]"), errors));
            Some(read.collect::<Vec<_>>())
        };
        let services = one_of("service");
        let (applications, app) = (one_of("application"), one_of("app"));
        if applications.is_some() && app.is_some() {
            let message = "stands beside application".to_owned();
            let hint = "write one of the two; both mean the same";
            errors.invalid(&format!("{path}.app"), "", message, hint);
        }
        let params = ParamMatch::read_list(present(map, "param"), &format!("{path}.param"), errors);
        Some(Self { address, services, applications: applications.or(app), params })
    }

    fn compat(&self) -> Option<dubbo::ConditionMatch> {
        let one_of = |list: &Vec<StringMatch>| {
            let oneof = list.iter().map(StringMatch::compat).collect::<Option<_>>()?;
            Some(dubbo::ListStringMatch { oneof })
        };
        let (address, service, application) = (
            self.address.as_ref().map(AddressMatch::compat),
            self.services.as_ref().map(one_of),
            self.applications.as_ref().map(one_of),
        );
        // `None` within: there is one, and it cannot be said.
        if [address == Some(None), service == Some(None), application == Some(None)].contains(&true)
        {
            return None;
        }
        Some(dubbo::ConditionMatch {
            address: address.flatten(),
            service: service.flatten(),
            application: application.flatten(),
            param: self.params.iter().map(ParamMatch::compat).collect::<Option<_>>()?,
        })
    }

    fn to_json(&self) -> Value {
        let list = |list: &[StringMatch]| -> Value {
            json!({ "oneof": list.iter().map(StringMatch::to_json).collect::<Vec<_>>() })
        };
        let mut map = Map::new();
        if let Some(address) = &self.address {
            map.insert("address".into(), address.to_json());
        }
        for (field, of) in [("service", &self.services), ("application", &self.applications)] {
            if let Some(of) = of {
                map.insert(field.into(), list(of));
            }
        }
        if !self.params.is_empty() {
            map.insert("param".into(), self.params.iter().map(ParamMatch::to_json).collect());
        }
        Value::Object(map)
    }
}

fn read_parameters(
    map: &Map<String, Value>,
    path: &str,
    errors: &mut Errors,
) -> BTreeMap<String, String> {
    let mut parameters = BTreeMap::new();
    let hint = "write name: value, for example timeout: \"1000\"";
    let Some(value) = present(map, "parameters") else {
        errors.missing(path, hint);
        return parameters;
    };
    let Some(entries) = value.as_object() else {
        let message = format!("{} is no object", show(value));
        errors.invalid(path, &show(value), message, hint);
        return parameters;
    };
    if entries.is_empty() {
        errors.invalid(path, "{}", "gives nothing".to_owned(), hint);
    }
    if entries.len() > MAX_PARAMETERS {
        let message = format!("{} parameters are too many", entries.len());
        let hint = format!("write at most {MAX_PARAMETERS}");
        errors.invalid(path, &entries.len().to_string(), message, &hint);
        return parameters;
    }
    for (name, value) in entries {
        let path = format!("{path}.{name}");
        match value {
            _ if name.is_empty() || name.len() > MAX_TEXT => {
                let message = "has no name, or too long a one".to_owned();
                errors.invalid(&path, name, message, hint);
            }
            Value::String(text) if text.len() <= MAX_TEXT => {
                parameters.insert(name.clone(), text.clone());
            }
            Value::String(text) => {
                let message = format!("{} bytes are too long", text.len());
                let hint = format!("write at most {MAX_TEXT} bytes");
                errors.invalid(&path, text, message, &hint);
            }
            other => {
                let message = format!("{} is no text", show(other));
                let hint = format!("write it in quotes: \"{}\"", show(other));
                errors.invalid(&path, &show(other), message, &hint);
            }
        }
    }
    parameters
}

/// A list of the older form; one that has `any` in it is no constraint.
fn read_names(value: Option<&Value>, path: &str, any: &str, errors: &mut Errors) -> Vec<String> {
    let mut names = Vec::new();
    for (i, item) in errors.list(value, path).iter().enumerate() {
        let path = format!("{path}[{i}]");
        match item {
            Value::String(text)
                if !text.is_empty()
                    && text.len() <= MAX_TEXT
                    && !text.chars().any(|c| c.is_whitespace() || c.is_control()) =>
            {
                names.push(text.clone());
            }
            other => {
                let message = "is no text, or an empty or long one, or has a blank".to_owned();
                let hint = format!("write a name or an address, or {any} for any");
                errors.invalid(&path, &show(other), message, &hint);
            }
        }
    }
    if names.iter().any(|name| name == any || name == ANY) {
        names.clear();
    }
    names
}

#[cfg(test)]
mod tests;
