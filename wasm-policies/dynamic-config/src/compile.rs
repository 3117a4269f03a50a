//! From a rule to matchers.

use prost::Message as _;
use rulecast_api::{
    Code,
    matcher::{AddressMatch, MatchError, ParamMatch, StringMatch},
    proto::rules::v1::{self as wire, r#override::Side},
};
use rulecast_policy::{Attributes, CommitError};

/// A rule, ready to be evaluated.
#[derive(Debug)]
pub(crate) struct Rule {
    pub(crate) entries: Vec<Entry>,
    pub(crate) slots: Slots,
}

/// Where a call says who calls what.
#[derive(Debug)]
pub(crate) struct Slots {
    pub(crate) service: u16,
    pub(crate) host: u16,
    pub(crate) application: u16,
}

/// Some parameters, and what they are for.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) consumer: bool,
    pub(crate) provider: bool,
    pub(crate) parameters: Vec<(String, String)>,
    pub(crate) address: Option<AddressMatch>,
    /// None: any. The same of the lists that follow.
    pub(crate) services: Vec<StringMatch>,
    pub(crate) applications: Vec<StringMatch>,
    /// With the slot of the consumer's parameter.
    pub(crate) params: Vec<(ParamMatch, u16)>,
    pub(crate) addresses: Vec<String>,
    pub(crate) provider_addresses: Vec<String>,
}

impl Rule {
    pub(crate) fn compile(spec: &[u8], attributes: &mut Attributes) -> Result<Self, CommitError> {
        let message = wire::DynamicConfig::decode(spec)
            .map_err(|error| refuse("spec", format!("is no DynamicConfig message: {error}")))?;
        let entries = message.configs.into_iter().enumerate();
        let entries = entries
            .map(|(i, config)| Entry::compile(config, &format!("configs[{i}]"), attributes))
            .collect::<Result<_, _>>()?;
        let slots = Slots {
            service: attributes.slot("service"),
            host: attributes.slot("consumer[host]"),
            application: attributes.slot("consumer[application]"),
        };
        Ok(Self { entries, slots })
    }
}

impl Entry {
    fn compile(
        config: wire::Override,
        path: &str,
        attributes: &mut Attributes,
    ) -> Result<Self, CommitError> {
        let wrong = |field: &str, error: MatchError| refuse(&format!("{path}.{field}"), error);
        let texts = |field: &str, list: &[wire::StringMatch]| -> Result<Vec<_>, CommitError> {
            let read = list.iter().map(StringMatch::from_wire);
            read.collect::<Result<_, _>>().map_err(|error| wrong(field, error))
        };
        let (consumer, provider) = match Side::try_from(config.side) {
            Ok(Side::Unspecified) => (true, true),
            Ok(Side::Consumer) => (true, false),
            Ok(Side::Provider) => (false, true),
            Err(_) => {
                return Err(refuse(&format!("{path}.side"), "is of a newer version"));
            }
        };
        let address = config.address.as_ref().map(AddressMatch::from_wire);
        let mut params = Vec::with_capacity(config.params.len());
        for param in &config.params {
            let param = ParamMatch::from_wire(param).map_err(|e| wrong("match.param", e))?;
            let slot = attributes.slot(&format!("consumer[{}]", param.key));
            params.push((param, slot));
        }
        let parameters = config.parameters.into_iter().map(|p| (p.name, p.value)).collect();
        Ok(Self {
            consumer,
            provider,
            parameters,
            address: address.transpose().map_err(|e| wrong("match.address", e))?,
            services: texts("match.service", &config.services)?,
            applications: texts("match.application", &config.applications)?,
            params,
            addresses: config.addresses,
            provider_addresses: config.provider_addresses,
        })
    }
}

fn refuse(field: &str, message: impl ToString) -> CommitError {
    CommitError::new(Code::RuleRefused.as_str(), field, message.to_string())
}
