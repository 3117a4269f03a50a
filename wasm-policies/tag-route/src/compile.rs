//! From a rule to sets of endpoints.

use prost::Message as _;
use rulecast_api::{
    Code,
    ip::{AddressSet, IpExpr, ip},
    matcher::ParamMatch,
    proto::rules::v1 as wire,
    tag_route::{FORCE_TAG, TAG},
};
use rulecast_policy::{Attributes, CommitError, bits, endpoints::Table};

/// A rule, ready to be evaluated.
#[derive(Debug)]
pub struct Rule {
    pub(crate) force: bool,
    /// By name; none in the rule that stands where nobody wrote one.
    pub(crate) tags: Vec<Tag>,
    pub(crate) slots: Slots,
}

/// Where a call says its tag.
#[derive(Debug)]
pub(crate) struct Slots {
    pub(crate) tag: u16,
    pub(crate) consumer_tag: u16,
    pub(crate) force: u16,
    pub(crate) consumer_force: u16,
}

/// A group of endpoints.
#[derive(Debug)]
pub(crate) struct Tag {
    pub(crate) name: String,
    addresses: AddressSet,
    matches: Vec<ParamMatch>,
}

/// What a rule knows of a set.
#[derive(Debug)]
pub struct Selected {
    /// One per tag; `None`: there are no addresses, nor does anything match.
    pub(crate) groups: Vec<Option<Vec<u64>>>,
    /// For calls without a tag: in no group, and not of a tag that the rule names.
    pub(crate) plain: Vec<u64>,
    /// Where calls of a tag fall back to: in no group, and without a tag of its own.
    pub(crate) untagged: Vec<u64>,
    /// The column of the endpoints' own tags.
    pub(crate) own: Option<usize>,
}

impl Rule {
    pub(crate) fn compile(spec: &[u8], attributes: &mut Attributes) -> Result<Self, CommitError> {
        let message = wire::TagRoute::decode(spec).map_err(|error| {
            refuse("spec".to_owned(), &format!("is no TagRoute message: {error}"))
        })?;
        let mut tags = Vec::with_capacity(message.tags.len());
        for (i, tag) in message.tags.iter().enumerate() {
            tags.push(Tag::compile(tag, &format!("tags[{i}]"))?);
        }
        tags.sort_by(|a, b| a.name.cmp(&b.name));
        if let Some(twice) = tags.windows(2).find(|two| two[0].name == two[1].name) {
            let message = format!("two tags are named {}", twice[0].name);
            return Err(refuse("tags".to_owned(), &message));
        }
        let mut slot = |from: &str, name: &str| attributes.slot(&format!("{from}[{name}]"));
        let slots = Slots {
            tag: slot("attachments", TAG),
            consumer_tag: slot("consumer", TAG),
            force: slot("attachments", FORCE_TAG),
            consumer_force: slot("consumer", FORCE_TAG),
        };
        Ok(Self { force: message.force, tags, slots })
    }

    /// What its tags select from a set.
    pub(crate) fn select(&self, table: &Table) -> Selected {
        let words = bits::words(table.len());
        let own = table.column(TAG);
        let mut untagged = bits::all(table.len());
        let mut tagged = vec![0; words];
        table.select(TAG, &mut tagged, |tag| !tag.is_empty());
        bits::subtract(&mut untagged, &tagged);
        if self.tags.is_empty() {
            let plain = untagged.clone();
            return Selected { groups: Vec::new(), plain, untagged, own };
        }
        let hosts = Hosts::new(table);
        let mut plain = bits::all(table.len());
        let mut groups = Vec::with_capacity(self.tags.len());
        for tag in &self.tags {
            let group = tag.select(table, &hosts);
            if let Some(group) = &group {
                bits::subtract(&mut plain, group);
                bits::subtract(&mut untagged, group);
            }
            groups.push(group);
        }
        let mut named = vec![0; words];
        table.select(TAG, &mut named, |tag| self.find(tag).is_some());
        bits::subtract(&mut plain, &named);
        Selected { groups, plain, untagged, own }
    }

    /// The number of a tag.
    pub(crate) fn find(&self, name: &[u8]) -> Option<usize> {
        self.tags.binary_search_by(|tag| tag.name.as_bytes().cmp(name)).ok()
    }
}

impl Tag {
    fn compile(tag: &wire::Tag, path: &str) -> Result<Self, CommitError> {
        if tag.name.is_empty() {
            return Err(refuse(format!("{path}.name"), "is empty"));
        }
        let mut addresses = Vec::with_capacity(tag.addresses.len());
        for (i, text) in tag.addresses.iter().enumerate() {
            let expression = IpExpr::parse(text)
                .map_err(|error| refuse(format!("{path}.addresses[{i}]"), &error.to_string()))?;
            addresses.push(expression);
        }
        let mut matches = Vec::with_capacity(tag.r#match.len());
        for (i, matcher) in tag.r#match.iter().enumerate() {
            let matcher = ParamMatch::from_wire(matcher)
                .map_err(|error| refuse(format!("{path}.match[{i}]"), &error.to_string()))?;
            matches.push(matcher);
        }
        let addresses = addresses.into_iter().collect();
        Ok(Self { name: tag.name.clone(), addresses, matches })
    }

    fn select(&self, table: &Table, hosts: &Hosts) -> Option<Vec<u64>> {
        if !self.addresses.is_empty() {
            let mut group = vec![0; bits::words(table.len())];
            for (i, (host, port)) in hosts.0.iter().enumerate() {
                if self.addresses.matches_ip(*host, *port) {
                    bits::insert(&mut group, i);
                }
            }
            return Some(group);
        }
        if self.matches.is_empty() {
            return None;
        }
        let mut group = bits::all(table.len());
        for matcher in &self.matches {
            let mut hit = vec![0; group.len()];
            table.select(&matcher.key, &mut hit, |value| matcher.matches(Some(value)));
            bits::intersect(&mut group, &hit);
        }
        (!bits::is_empty(&group)).then_some(group)
    }
}

/// Host and port of each endpoint, as far as they are an address and a number.
struct Hosts(Vec<(Option<std::net::IpAddr>, Option<u16>)>);

impl Hosts {
    fn new(table: &Table) -> Self {
        let mut hosts = vec![(None, None); table.len()];
        let text = |value| std::str::from_utf8(value).ok();
        for (value, members) in table.each("host") {
            let host = text(value).and_then(ip);
            members.for_each(|i| hosts.get_mut(i).into_iter().for_each(|place| place.0 = host));
        }
        for (value, members) in table.each("port") {
            let port = text(value).and_then(|port| port.parse().ok());
            members.for_each(|i| hosts.get_mut(i).into_iter().for_each(|place| place.1 = port));
        }
        Self(hosts)
    }
}

fn refuse(field: String, message: &str) -> CommitError {
    CommitError::new(Code::RuleRefused.as_str(), field, message)
}
