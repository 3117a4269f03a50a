use std::{collections::BTreeSet, sync::Arc};

use bytes::Bytes;
use prost::Message as _;
use serde_json::{Map, Value, json};

use crate::{
    fields::{Errors, Scope, present, show},
    kind::{FieldError, RuleSpec},
    proto::{
        dubbo::v1alpha1 as dubbo,
        rules::v1::{self as wire, Target},
    },
};

/// Longest name of an interface, in characters.
pub const MAX_INTERFACE: usize = 1024;
/// Longest name of an application, in characters.
pub const MAX_APPLICATION: usize = 253;

/// The spec of a ServiceNameMapping: which applications provide an interface.
///
/// Several may speak of one interface; readers take the union of what they name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceNameMappingSpec {
    /// Without group and version.
    pub interface: String,
    /// Never empty.
    pub applications: BTreeSet<String>,
}

impl ServiceNameMappingSpec {
    /// Parses and validates the `spec` of a manifest; all errors at once, in document order.
    pub fn parse(value: Value) -> Result<Arc<dyn RuleSpec>, Vec<FieldError>> {
        Self::read(&value).map(|spec| Arc::new(spec) as Arc<dyn RuleSpec>)
    }

    /// As [`ServiceNameMappingSpec::parse`], typed.
    pub fn read(value: &Value) -> Result<Self, Vec<FieldError>> {
        let mut errors = Errors::default();
        let spec = Self::read_fields(value, &mut errors);
        match spec {
            Some(spec) if errors.0.is_empty() => Ok(spec),
            _ => Err(errors.0),
        }
    }

    fn read_fields(value: &Value, errors: &mut Errors) -> Option<Self> {
        let map = errors.object(value, "spec", &["interfaceName", "applicationNames"])?;
        Some(Self {
            interface: read_interface(map, errors),
            applications: read_applications(map, errors),
        })
    }
}

fn read_interface(map: &Map<String, Value>, errors: &mut Errors) -> String {
    const PATH: &str = "spec.interfaceName";
    const HINT: &str = "write the interface alone, as com.example.OrderService";
    let Some(name) = errors.text(map, "spec", "interfaceName") else {
        if present(map, "interfaceName").is_none() {
            errors.missing(PATH, HINT);
        }
        return String::new();
    };
    let wrong = if name.is_empty() {
        Some("is empty".to_owned())
    } else if name.chars().any(is_blank) {
        Some("has a blank or control character".to_owned())
    } else if name.contains(['/', ':']) {
        Some("has a group or a version".to_owned())
    } else {
        too_long(name, MAX_INTERFACE)
    };
    if let Some(message) = wrong {
        errors.invalid(PATH, name, message, HINT);
    }
    name.to_owned()
}

fn read_applications(map: &Map<String, Value>, errors: &mut Errors) -> BTreeSet<String> {
    const PATH: &str = "spec.applicationNames";
    let list = present(map, "applicationNames");
    let items = errors.list(list, PATH);
    match list {
        None => errors.missing(PATH, "write the names of the applications that provide it"),
        Some(Value::Array(none)) if none.is_empty() => {
            let hint = "name at least one; where nobody provides the interface, delete the mapping";
            errors.invalid(PATH, "[]", "names nobody".to_owned(), hint);
        }
        Some(_) => {}
    }
    let mut names = BTreeSet::new();
    for (i, item) in items.iter().enumerate() {
        let path = format!("{PATH}[{i}]");
        let Value::String(name) = item else {
            let message = format!("{} is no text", show(item));
            errors.invalid(&path, &show(item), message, "write the application's name");
            continue;
        };
        let (wrong, hint) = if name.is_empty() {
            (Some("is empty".to_owned()), "write the application's name")
        } else if name.contains(',') {
            let message = "has a comma".to_owned();
            (Some(message), "write each application as an entry of its own")
        } else if name.chars().any(is_blank) {
            let message = "has a blank or control character".to_owned();
            (Some(message), "write the application's name")
        } else {
            (too_long(name, MAX_APPLICATION), "write the application's name")
        };
        if let Some(message) = wrong {
            errors.invalid(&path, name, message, hint);
        }
        names.insert(name.clone());
    }
    names
}

fn is_blank(c: char) -> bool {
    c.is_whitespace() || c.is_control()
}

fn too_long(name: &str, most: usize) -> Option<String> {
    (name.chars().count() > most).then(|| format!("has more than {most} characters"))
}

impl RuleSpec for ServiceNameMappingSpec {
    /// Every service of the interface, whatever its group and version.
    fn target(&self) -> Option<Target> {
        Some(Scope::Service.target(self.interface.clone()))
    }

    fn enabled(&self) -> bool {
        true
    }

    fn priority(&self) -> i32 {
        0
    }

    fn encode(&self) -> Bytes {
        let message = wire::ServiceNameMapping {
            interface_name: self.interface.clone(),
            application_names: self.applications.iter().cloned().collect(),
        };
        message.encode_to_vec().into()
    }

    fn to_json(&self) -> Value {
        json!({ "interfaceName": self.interface, "applicationNames": self.applications })
    }

    fn compat(&self) -> Option<Bytes> {
        let message = dubbo::ServiceNameMapping {
            interface_name: self.interface.clone(),
            application_names: self.applications.iter().cloned().collect(),
        };
        Some(message.encode_to_vec().into())
    }
}

#[cfg(test)]
mod tests;
