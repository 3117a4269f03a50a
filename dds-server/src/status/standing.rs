//! What stands on an object now, in short: ten thousand of these are kept.

use rulecast_api::{
    Digest,
    rule_status::{ACCEPTED, ConditionStatus, LastAccepted, PROGRAMMED, RuleStatus},
};
use serde_json::Value;

use super::wanted::Reason;

/// A condition that stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stands {
    pub(super) status: ConditionStatus,
    /// `None`: none of ours.
    pub(super) reason: Option<Reason>,
    /// Of which generation it speaks.
    pub(super) generation: i64,
    /// When the status last changed, as it stands.
    pub(super) since: Box<str>,
}

/// A status that stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Standing {
    pub(super) generation: i64,
    pub(super) accepted: Option<Stands>,
    pub(super) programmed: Option<Stands>,
    pub(super) matched: i64,
    pub(super) last_accepted: Option<Box<LastAccepted>>,
    /// Everybody had answered or was late.
    pub(super) settled: bool,
    /// Of all but times.
    pub(super) content: Digest,
}

impl Standing {
    /// Reads what stands on an object. Conditions and fields of others count for nothing;
    /// `None` where what is left is no status.
    pub(super) fn read(mut value: Value) -> Option<Self> {
        if let Some(conditions) = value.get_mut("conditions").and_then(Value::as_array_mut) {
            conditions.retain(|condition| {
                condition
                    .get("type")
                    .and_then(Value::as_str)
                    .is_some_and(|kind| kind == ACCEPTED || kind == PROGRAMMED)
            });
        }
        let status: RuleStatus = serde_json::from_value(value).ok()?;
        let mut standing = Self::of(&status, false);
        standing.settled =
            standing.programmed.as_ref().is_some_and(|p| p.reason != Some(Reason::Pending));
        Some(standing)
    }

    /// What stands after `status` was written.
    pub(super) fn of(status: &RuleStatus, settled: bool) -> Self {
        let find = |kind: &str| {
            let condition = status.conditions.iter().find(|condition| condition.kind == kind)?;
            Some(Stands {
                status: condition.status,
                reason: Reason::read(&condition.reason),
                generation: condition.observed_generation,
                since: condition.last_transition_time.as_str().into(),
            })
        };
        Self {
            generation: status.observed_generation,
            accepted: find(ACCEPTED),
            programmed: find(PROGRAMMED),
            matched: status.matched,
            last_accepted: status.last_accepted.clone().map(Box::new),
            settled,
            content: content(status),
        }
    }

    /// Whether Programmed stands as true for a generation.
    pub(super) fn programmed(&self, generation: i64) -> bool {
        self.programmed
            .as_ref()
            .is_some_and(|p| p.status == ConditionStatus::True && p.generation == generation)
    }

    /// The last generation that is known to have been valid.
    pub(super) fn good(&self) -> Option<i64> {
        let accepted = self.accepted.as_ref().filter(|a| a.status == ConditionStatus::True);
        let last = self.last_accepted.as_ref().map(|last| last.generation);
        last.filter(|generation| *generation > 0).or(accepted.map(|a| a.generation))
    }
}

/// Of all that a status says, but for times and order.
pub(super) fn content(status: &RuleStatus) -> Digest {
    let mut status = status.clone();
    status.conditions.sort_by(|a, b| a.kind.cmp(&b.kind));
    for condition in &mut status.conditions {
        condition.last_transition_time.clear();
    }
    let last = status.last_accepted.take();
    // A status has string keys alone and always becomes JSON.
    let mut text = serde_json::to_string(&status).unwrap_or_default();
    if let Some(last) = last {
        text.push_str(&last.generation.to_string());
        canonical(&last.spec, &mut text);
    }
    Digest::of(text.as_bytes())
}

/// JSON in one writing: members in order, and none that is null.
fn canonical(value: &Value, text: &mut String) {
    match value {
        Value::Object(members) => {
            let mut members: Vec<_> = members.iter().filter(|(_, v)| !v.is_null()).collect();
            members.sort_by_key(|(key, _)| key.as_str());
            text.push('{');
            for (key, value) in members {
                text.push_str(&Value::from(key.as_str()).to_string());
                text.push(':');
                canonical(value, text);
                text.push(',');
            }
            text.push('}');
        }
        Value::Array(entries) => {
            text.push('[');
            for entry in entries {
                canonical(entry, text);
                text.push(',');
            }
            text.push(']');
        }
        plain => text.push_str(&plain.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn stands(value: Value) -> Standing {
        Standing::read(value).expect("a status")
    }

    fn condition(kind: &str, time: &str) -> Value {
        json!({
            "type": kind, "status": "True", "observedGeneration": 2, "reason": "Applied",
            "message": "m", "lastTransitionTime": time,
        })
    }

    #[test]
    fn order_times_and_what_others_wrote_are_no_content() {
        let one = stands(json!({
            "observedGeneration": 2, "matched": 3, "applied": 3, "rejected": 0,
            "conditions": [condition("Accepted", "a"), condition("Programmed", "b")],
            "lastAccepted": { "generation": 1, "spec": { "a": [1, { "x": 1, "y": null }], "b": 2 } },
        }));
        let other = stands(json!({
            "lastAccepted": { "spec": { "b": 2, "a": [1, { "x": 1 }] }, "generation": 1 },
            "conditions": [
                { "type": "Theirs" },
                condition("Programmed", "c"),
                condition("Accepted", "d"),
            ],
            "rejected": 0, "applied": 3, "matched": 3, "observedGeneration": 2, "theirs": {},
        }));
        assert_eq!(one.content, other.content);
        assert_eq!(other.programmed.as_ref().map(|p| &*p.since), Some("c"));
        let mut less = json!({ "observedGeneration": 2, "matched": 3, "applied": 2 });
        assert_ne!(stands(less.clone()).content, one.content);
        less["lastAccepted"] = json!({ "generation": 1, "spec": { "a": [{ "x": 1 }, 1], "b": 2 } });
        let before = stands(less.clone()).content;
        less["lastAccepted"]["spec"]["a"] = json!([1, { "x": 1 }]);
        assert_ne!(stands(less).content, before, "the order of a list counts");
    }

    #[test]
    fn what_is_no_status_is_none() {
        assert_eq!(Standing::read(json!("text")), None);
        assert_eq!(Standing::read(json!({ "matched": "many" })), None);
        assert_eq!(Standing::read(json!({ "conditions": [{ "type": "Accepted" }] })), None);
    }

    #[test]
    fn the_last_good_generation_is_read_from_what_stands() {
        let valid = stands(json!({ "conditions": [condition("Accepted", "a")] }));
        assert_eq!(valid.good(), Some(2));
        let last = json!({ "lastAccepted": { "generation": 4, "spec": {} } });
        assert_eq!(stands(last).good(), Some(4));
        assert_eq!(stands(json!({})).good(), None);
    }
}
