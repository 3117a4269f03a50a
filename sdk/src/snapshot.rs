//! What a client holds of one type: immutable, replaced whole.

use std::collections::BTreeMap;

use bytes::Bytes;
use prost::Message;
use rulecast_api::{
    Code, Digest,
    proto::{RULE_TYPE_URL, rules::v1::Rule},
};
use std::sync::Arc;

use crate::{
    disk::{StoredItem, StoredRejection, StoredType},
    status::{ItemDigest, KindStatus, RejectedRule, Source, coded},
};

/// A rule in force, as delivered and as read.
#[derive(Clone, Debug, PartialEq)]
pub struct Item {
    /// Of `bytes`.
    pub digest: Digest,
    /// As delivered.
    pub bytes: Bytes,
    /// What they say.
    pub rule: Arc<Rule>,
}

/// A version that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejected {
    /// `<name>/<namespace>`; empty when the item does not even say that.
    pub key: String,
    /// Of the refused bytes.
    pub digest: Digest,
    /// Why, beginning with the code.
    pub reason: String,
}

/// An item as delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivered {
    /// Type URL of the `Any`.
    pub type_url: String,
    /// Its value.
    pub bytes: Bytes,
}

/// A change of one type, as the plane sends it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Change {
    /// Of the plane's store.
    pub revision: i64,
    /// To resume from once applied; may be empty.
    pub resume_token: Bytes,
    /// Everything that is not in `items` or `withheld` is gone.
    pub full: bool,
    /// New and changed rules, and with `full` unchanged ones too.
    pub items: Vec<Delivered>,
    /// Keys of rules that are gone.
    pub removed: Vec<String>,
    /// Rules that exist, but that this client refused: what it holds of them stays.
    pub withheld: Vec<String>,
}

/// What a client holds of one type.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KindSnapshot {
    /// Of the plane's store.
    pub revision: i64,
    /// To resume from; may be empty.
    pub resume_token: Bytes,
    /// Rules in force, by key.
    pub items: BTreeMap<String, Item>,
    /// Newest versions that were refused, by key.
    pub rejected: BTreeMap<String, Rejected>,
    /// Where it came from; `None` before there is anything.
    pub source: Option<Source>,
}

/// A [`Rule`] read as far as its name only.
#[derive(Clone, PartialEq, Message)]
struct Named {
    #[prost(string, tag = "1")]
    key: String,
}

/// Reads an item. What is no rule is refused with its key, as far as it has one.
fn read(delivered: &Delivered) -> Result<(String, Item), Rejected> {
    let digest = Digest::of(&delivered.bytes);
    let named = Named::decode(delivered.bytes.clone()).map(|n| n.key).unwrap_or_default();
    let refuse = |message: String| {
        let reason = coded(Code::ItemInvalid, &message);
        Err(Rejected { key: named.clone(), digest, reason })
    };
    if delivered.type_url != RULE_TYPE_URL {
        let url: String = delivered.type_url.chars().take(200).collect();
        return refuse(format!("the item is of type \"{url}\"; it should be {RULE_TYPE_URL}"));
    }
    match Rule::decode(delivered.bytes.clone()) {
        Ok(rule) if rule.key.is_empty() => refuse("the rule has no key".into()),
        Ok(rule) => {
            let item = Item { digest, bytes: delivered.bytes.clone(), rule: Arc::new(rule) };
            Ok((item.rule.key.clone(), item))
        }
        Err(e) => refuse(format!("the item is no rule: {e}")),
    }
}

impl KindSnapshot {
    /// This snapshot after a change. `check` says why a rule cannot be obeyed; such a
    /// rule keeps the version held before. Unchanged rules are not checked again.
    /// Also gives what the change brought that was refused.
    pub fn apply(
        &self,
        change: &Change,
        mut check: impl FnMut(&Rule) -> Result<(), String>,
    ) -> (Self, Vec<Rejected>) {
        let mut refused = Vec::new();
        let mut next = if change.full {
            Self { source: Some(Source::Plane), ..Self::default() }
        } else {
            Self { source: Some(Source::Plane), ..self.clone() }
        };
        next.revision = change.revision;
        next.resume_token = change.resume_token.clone();
        for key in &change.removed {
            next.items.remove(key);
            next.rejected.remove(key);
        }
        for key in &change.withheld {
            if let Some(item) = self.items.get(key) {
                next.items.insert(key.clone(), item.clone());
            }
            if let Some(rejected) = self.rejected.get(key) {
                next.rejected.insert(key.clone(), rejected.clone());
            }
        }
        for delivered in &change.items {
            let read = match read(delivered) {
                Ok((key, item)) => match self.items.get(&key) {
                    Some(held) if held.digest == item.digest => Ok((key, held.clone())),
                    _ => match check(&item.rule) {
                        Ok(()) => Ok((key, item)),
                        Err(reason) => Err(Rejected { key, digest: item.digest, reason }),
                    },
                },
                Err(rejected) => Err(rejected),
            };
            match read {
                Ok((key, item)) => {
                    next.rejected.remove(&key);
                    next.items.insert(key, item);
                }
                Err(rejected) => {
                    if let Some(item) = self.items.get(&rejected.key) {
                        next.items.insert(rejected.key.clone(), item.clone());
                    }
                    next.rejected.insert(rejected.key.clone(), rejected.clone());
                    refused.push(rejected);
                }
            }
        }
        (next, refused)
    }

    /// For the disk. `engine` is the digest of the policies that refused what was refused.
    pub fn to_stored(&self, type_name: &str, engine: &Digest) -> StoredType {
        let items = self.items.iter();
        let rejected = self.rejected.values();
        StoredType {
            type_name: type_name.to_owned(),
            revision: self.revision,
            resume_token: self.resume_token.clone(),
            items: items
                .map(|(key, item)| StoredItem { key: key.clone(), value: item.bytes.clone() })
                .collect(),
            rejected: rejected
                .map(|r| StoredRejection {
                    key: r.key.clone(),
                    item_digest: r.digest.to_bytes(),
                    engine_digest: engine.to_bytes(),
                    reason: r.reason.clone(),
                })
                .collect(),
        }
    }

    /// From the disk. Rules that these policies refuse are not in force, whatever the
    /// ones before them said; refusals by other policies are forgotten, and the resume
    /// token with them, so that the plane sends those rules again.
    pub fn from_stored(
        stored: &StoredType,
        engine: &Digest,
        check: impl FnMut(&Rule) -> Result<(), String>,
    ) -> Self {
        let items = stored.items.iter().map(|item| Delivered {
            type_url: RULE_TYPE_URL.to_owned(),
            bytes: item.value.clone(),
        });
        let change = Change {
            revision: stored.revision,
            resume_token: stored.resume_token.clone(),
            full: true,
            items: items.collect(),
            ..Change::default()
        };
        let (mut held, _) = Self::default().apply(&change, check);
        for stored in &stored.rejected {
            let same_engine = stored.engine_digest.as_ref() == engine.as_bytes();
            match Digest::from_bytes(&stored.item_digest) {
                Some(digest) if same_engine => {
                    let (key, reason) = (stored.key.clone(), stored.reason.clone());
                    held.rejected.insert(key.clone(), Rejected { key, digest, reason });
                }
                _ => held.resume_token = Bytes::new(),
            }
        }
        held.source = Some(Source::Disk);
        held
    }

    /// For the application.
    pub fn status(&self, type_name: &str) -> KindStatus {
        KindStatus {
            type_name: type_name.to_owned(),
            revision: self.revision,
            items: self.items.len(),
            rules: self.items.iter().map(|(k, i)| (k.clone(), ItemDigest(i.digest))).collect(),
            rejected: self
                .rejected
                .values()
                .map(|r| RejectedRule {
                    key: r.key.clone(),
                    digest: ItemDigest(r.digest),
                    reason: r.reason.clone(),
                    last_good_in_force: self.items.contains_key(&r.key),
                })
                .collect(),
            synced: self.source.is_some(),
            source: self.source,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rule(key: &str, spec: &[u8]) -> Delivered {
        let rule = Rule { key: key.into(), spec: spec.to_vec().into(), ..Rule::default() };
        Delivered { type_url: RULE_TYPE_URL.into(), bytes: rule.encode_to_vec().into() }
    }

    fn full(items: Vec<Delivered>) -> Change {
        Change { revision: 1, full: true, items, ..Change::default() }
    }

    fn delta(items: Vec<Delivered>, removed: &[&str]) -> Change {
        let removed = removed.iter().map(|&k| k.into()).collect();
        Change { revision: 2, items, removed, ..Change::default() }
    }

    fn no_bad(rule: &Rule) -> Result<(), String> {
        if rule.spec.starts_with(b"bad") { Err("RC0601 bad".into()) } else { Ok(()) }
    }

    fn specs(held: &KindSnapshot) -> Vec<(&str, &[u8])> {
        held.items.iter().map(|(k, i)| (k.as_str(), i.rule.spec.as_ref())).collect()
    }

    #[test]
    fn of_three_rules_the_one_refused_keeps_its_last_good_version() {
        let first = full(vec![rule("a", b"1"), rule("b", b"1"), rule("c", b"1")]);
        let (held, refused) = KindSnapshot::default().apply(&first, no_bad);
        assert!(refused.is_empty());
        let second = full(vec![rule("a", b"2"), rule("b", b"bad"), rule("c", b"2")]);
        let (held, refused) = held.apply(&second, no_bad);
        let want: [(&str, &[u8]); 3] = [("a", b"2"), ("b", b"1"), ("c", b"2")];
        assert_eq!(specs(&held), want);
        assert_eq!(refused.len(), 1);
        assert_eq!((refused[0].key.as_str(), refused[0].reason.as_str()), ("b", "RC0601 bad"));
        assert!(held.status("t").rejected[0].last_good_in_force);

        let withheld = Change { withheld: vec!["b".into()], ..full(vec![rule("a", b"2")]) };
        let (held, _) = held.apply(&withheld, no_bad);
        let want: [(&str, &[u8]); 2] = [("a", b"2"), ("b", b"1")];
        assert_eq!(specs(&held), want, "withheld is kept, absent is gone");
        assert_eq!(held.rejected.len(), 1);

        let (mended, _) = held.apply(&delta(vec![rule("b", b"3")], &[]), no_bad);
        assert!(mended.rejected.is_empty());
        let (gone, _) = held.apply(&delta(vec![], &["b"]), no_bad);
        assert!(gone.rejected.is_empty() && gone.items.len() == 1);
    }

    #[test]
    fn an_item_that_is_no_rule_is_named_as_far_as_it_can_be() {
        // A key, then field 2 (a message) that ends in the middle of nothing.
        let mut broken = rule("a", b"").bytes.to_vec();
        broken.extend_from_slice(&[0x12, 1, 0xff]);
        let items = vec![
            Delivered { bytes: broken.into(), ..rule("", b"") },
            Delivered { type_url: "x/y".into(), ..rule("b", b"1") },
            rule("", b"1"),
            Delivered { bytes: Bytes::from_static(&[0xff]), ..rule("", b"") },
            rule("c", b"1"),
        ];
        let (held, refused) = KindSnapshot::default().apply(&full(items.clone()), no_bad);
        assert_eq!(specs(&held).len(), 1);
        let keys: Vec<_> = refused.iter().map(|r| r.key.as_str()).collect();
        assert_eq!(keys, ["a", "b", "", ""]);
        for (refused, item) in refused.iter().zip(&items) {
            assert!(refused.reason.starts_with("RC0609 "), "{}", refused.reason);
            assert_eq!(refused.digest, Digest::of(&item.bytes));
        }
    }

    #[test]
    fn unchanged_rules_are_neither_checked_nor_read_anew() {
        let change = full(vec![rule("a", b"1"), rule("b", b"1")]);
        let (held, _) = KindSnapshot::default().apply(&change, no_bad);
        let change = full(vec![rule("a", b"1"), rule("b", b"2")]);
        let mut checked = Vec::new();
        let (next, _) = held.apply(&change, |rule| {
            checked.push(rule.key.clone());
            Ok(())
        });
        assert_eq!(checked, ["b"]);
        assert!(Arc::ptr_eq(&held.items["a"].rule, &next.items["a"].rule));
    }

    #[test]
    fn what_another_engine_refused_is_asked_for_again() {
        let change = Change {
            resume_token: Bytes::from_static(b"t"),
            ..full(vec![rule("a", b"1"), rule("b", b"bad")])
        };
        let (held, _) = KindSnapshot::default().apply(&change, no_bad);
        let (old, new) = (Digest::of(b"old"), Digest::of(b"new"));
        let stored = held.to_stored("t", &old);
        let same = KindSnapshot::from_stored(&stored, &old, no_bad);
        assert_eq!(same, KindSnapshot { source: Some(Source::Disk), ..held.clone() });
        let other = KindSnapshot::from_stored(&stored, &new, no_bad);
        assert!(other.rejected.is_empty() && other.resume_token.is_empty());
        let strict = KindSnapshot::from_stored(&stored, &old, |_| Err("RC0601 no".into()));
        assert!(strict.items.is_empty());
        assert_eq!(strict.rejected.len(), 2);
    }

    proptest! {
        #[test]
        fn any_bytes_are_applied_without_panic(
            items in proptest::collection::vec(
                (any::<bool>(), proptest::collection::vec(any::<u8>(), 0..40)), 0..6),
            whole in any::<bool>(),
        ) {
            let items: Vec<_> = items
                .into_iter()
                .map(|(right, bytes)| Delivered {
                    type_url: if right { RULE_TYPE_URL.into() } else { "x".into() },
                    bytes: bytes.into(),
                })
                .collect();
            let count = items.len();
            let change = Change { full: whole, items, ..Change::default() };
            let (held, refused) = KindSnapshot::default().apply(&change, no_bad);
            prop_assert!(held.items.len() + refused.len() <= count);
        }
    }
}
