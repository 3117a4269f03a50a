//! Which namespace owns a service or an application.

use std::{any::Any, collections::HashMap};

use rulecast_api::{
    ServiceKey,
    proto::rules::v1::{Target, target},
    service_name_mapping::ServiceNameMappingSpec,
};

use super::Root;
use crate::index::Rules;

/// Which namespace owns a service or application. Immutable.
///
/// What is configured wins. Otherwise a service is owned by the namespace whose
/// ServiceNameMapping registered its interface: of several the one that was there first, since
/// rules of an owner reach callers everywhere. So nobody takes a service over by registering it
/// too, while its owner keeps a registration. An application is owned by configuration only:
/// which ones a mapping names can be changed at any time, so it is no claim with an age.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owners {
    configured: HashMap<String, String>,
    registered: HashMap<String, String>,
}

impl Owners {
    /// From pairs of a service key or application, and its namespace.
    pub fn new(pairs: impl IntoIterator<Item = (impl Into<String>, impl Into<String>)>) -> Self {
        let configured = pairs
            .into_iter()
            .map(|(name, namespace)| {
                let name = name.into();
                // The same service can be written in several ways.
                let name = name.parse::<ServiceKey>().map_or(name, |key| key.to_string());
                (name, namespace.into())
            })
            .collect();
        Self { configured, ..Self::default() }
    }

    /// With what these rules of kind ServiceNameMapping register, in place of what was
    /// registered before. What stands in the root namespace makes nobody an owner: rules there
    /// reach everybody as it is.
    #[must_use]
    pub fn registered(&self, mappings: &Rules, root: &Root) -> Self {
        let mut first: HashMap<&str, (i64, &str)> = HashMap::new();
        for stored in mappings.values() {
            let resource = &stored.resource;
            let spec: &dyn Any = &*resource.spec;
            let Some(spec) = spec.downcast_ref::<ServiceNameMappingSpec>() else { continue };
            if root.is(&resource.id.namespace) {
                continue;
            }
            // Of the same second, or where the store knows no times, the smaller name.
            let claim = (resource.created, resource.id.namespace.as_str());
            let held = first.entry(&spec.interface).or_insert(claim);
            *held = claim.min(*held);
        }
        let owned = |(name, (_, namespace)): (&str, (i64, &str))| (name.into(), namespace.into());
        Self {
            configured: self.configured.clone(),
            registered: first.into_iter().map(owned).collect(),
        }
    }

    /// Who owns a target: by its whole service key, else by its interface alone.
    pub fn of(&self, target: &Target) -> Option<&str> {
        let found = if target.scope() == target::Scope::Service {
            match target.key.parse::<ServiceKey>() {
                Ok(key) => self
                    .configured
                    .get(&key.to_string())
                    .or_else(|| self.configured.get(&key.interface))
                    .or_else(|| self.registered.get(&key.interface)),
                Err(_) => self.configured.get(&target.key),
            }
        } else {
            self.configured.get(&target.key)
        };
        found.map(String::as_str)
    }
}

#[cfg(test)]
mod tests;
