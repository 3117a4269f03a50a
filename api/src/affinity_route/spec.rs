use std::sync::Arc;

use bytes::Bytes;
use prost::Message as _;
use serde_json::{Map, Value, json};

use crate::{
    fields::{Errors, Scope, present, show},
    kind::{FieldError, RuleSpec},
    matcher::spec::name,
    proto::rules::v1::{self as wire, Target},
};

/// The spec of an AffinityRoute: prefers endpoints that share a parameter with the caller.
#[derive(Clone, Debug, PartialEq)]
pub struct AffinityRouteSpec {
    /// As written; it makes no difference.
    pub config_version: Option<String>,
    /// False: acts as no rule. Default true.
    pub enabled: bool,
    /// A service key or an application's name; empty only when read leniently.
    pub key: String,
    /// What `key` names; `None` only when read leniently: all calls.
    pub scope: Option<Scope>,
    /// Accepted for compatibility, without effect.
    pub runtime: Option<bool>,
    /// `affinityAware.key`: the parameter that is compared.
    pub affinity_key: String,
    /// `affinityAware.ratio`: percent of the endpoints, 0 to 100; with fewer the preference is
    /// dropped. Default 0.
    pub ratio: f64,
}

impl AffinityRouteSpec {
    /// Parses and validates the `spec` of a manifest; all errors at once, in document order.
    pub fn parse(value: Value) -> Result<Arc<dyn RuleSpec>, Vec<FieldError>> {
        Self::read(&value, false).map(|spec| Arc::new(spec) as Arc<dyn RuleSpec>)
    }

    /// As [`AffinityRouteSpec::parse`], but `key` and `scope` may be missing: all calls.
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
        const FIELDS: &[&str] =
            &["configVersion", "enabled", "key", "scope", "runtime", "affinityAware"];
        let map = errors.object(value, "spec", FIELDS)?;
        let config_version = errors.version(map, "AffinityRoute", &["v3.0", "v3.1"], true);
        let scope = errors.scope(map, lenient);
        let key = errors.key(map, scope, lenient);
        let enabled = errors.flag(map, "spec", "enabled").unwrap_or(true);
        let runtime = errors.flag(map, "spec", "runtime");
        let Some(aware) = present(map, "affinityAware") else {
            errors.missing("spec.affinityAware", "write {key: region, ratio: 20}");
            return None;
        };
        let path = "spec.affinityAware";
        let aware = errors.object(aware, path, &["key", "ratio"])?;
        let hint = "write the parameter that endpoints should share with their caller";
        let affinity_key = name(aware, path, "key", hint, errors);
        let ratio = match present(aware, "ratio") {
            None => 0.0,
            Some(value) => match value.as_f64() {
                Some(ratio) if (0.0..=100.0).contains(&ratio) => ratio,
                _ => {
                    let message = format!("{} is no percentage", show(value));
                    let hint = "write a number from 0 to 100";
                    errors.invalid("spec.affinityAware.ratio", &show(value), message, hint);
                    0.0
                }
            },
        };
        Some(Self {
            config_version: config_version.map(str::to_owned),
            enabled,
            key,
            scope,
            runtime,
            affinity_key: affinity_key?,
            ratio,
        })
    }

    /// The message that the policy gets.
    pub fn to_wire(&self) -> wire::AffinityRoute {
        wire::AffinityRoute { key: self.affinity_key.clone(), ratio: self.ratio }
    }
}

impl RuleSpec for AffinityRouteSpec {
    fn target(&self) -> Option<Target> {
        Some(self.scope?.target(self.key.clone()))
    }

    fn enabled(&self) -> bool {
        self.enabled
    }

    fn priority(&self) -> i32 {
        0
    }

    fn encode(&self) -> Bytes {
        Bytes::from(self.to_wire().encode_to_vec())
    }

    fn to_json(&self) -> Value {
        let mut map = Map::new();
        if let Some(version) = &self.config_version {
            map.insert("configVersion".into(), version.clone().into());
        }
        map.insert("enabled".into(), self.enabled.into());
        if let Some(scope) = self.scope {
            map.insert("scope".into(), scope.as_str().into());
        }
        if !self.key.is_empty() {
            map.insert("key".into(), self.key.clone().into());
        }
        if let Some(runtime) = self.runtime {
            map.insert("runtime".into(), runtime.into());
        }
        // A whole number as people write it.
        let ratio = match self.ratio.fract() == 0.0 {
            true => json!(self.ratio as u64),
            false => json!(self.ratio),
        };
        map.insert("affinityAware".into(), json!({ "key": self.affinity_key, "ratio": ratio }));
        Value::Object(map)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code::Code;

    fn errors(value: Value) -> Vec<(Code, String)> {
        let errors = AffinityRouteSpec::parse(value).expect_err("refused");
        errors.into_iter().map(|e| (e.code, e.path)).collect()
    }

    #[test]
    fn round_trips() {
        for value in [
            json!({ "scope": "application", "key": "shop", "affinityAware": { "key": "region" } }),
            json!({ "configVersion": "v3.1", "scope": "service", "key": "com.Foo:0.0.0",
                    "enabled": false, "runtime": true,
                    "affinityAware": { "key": "zone", "ratio": 40.1 } }),
            json!({ "scope": "service", "key": "com.Foo",
                    "affinityAware": { "key": "zone", "ratio": 100 } }),
        ] {
            let spec = AffinityRouteSpec::parse(value).expect("valid");
            let again = AffinityRouteSpec::parse(spec.to_json()).expect("valid");
            assert_eq!(spec.to_json(), again.to_json());
            assert_eq!(spec.encode(), again.encode());
            assert_eq!(spec.target(), again.target());
        }
    }

    #[test]
    fn collects_all_errors() {
        let invalid = |path: &str| (Code::FieldInvalid, path.to_owned());
        let missing = |path: &str| (Code::FieldMissing, path.to_owned());
        let found = errors(json!({ "configVersion": "v2", "enabled": 1, "scope": "shop",
            "affinityAware": { "key": "", "ration": 3, "ratio": 100.5 } }));
        let unknown = (Code::FieldUnknown, "spec.affinityAware.ration".to_owned());
        assert_eq!(
            found,
            [
                invalid("spec.configVersion"),
                invalid("spec.scope"),
                missing("spec.key"),
                invalid("spec.enabled"),
                unknown,
                invalid("spec.affinityAware.key"),
                invalid("spec.affinityAware.ratio"),
            ]
        );
        let absent = ["spec.scope", "spec.key", "spec.affinityAware"].map(missing);
        assert_eq!(errors(json!({})), absent);
        for ratio in [json!(-1), json!(101), json!("20"), json!(true)] {
            let value = json!({ "scope": "service", "key": "a",
                                "affinityAware": { "key": "k", "ratio": ratio } });
            assert_eq!(errors(value), [invalid("spec.affinityAware.ratio")]);
        }
    }
}
