//! What a client holds and how it fares, for the application and for people.

use std::{collections::BTreeMap, fmt};

use rulecast_api::{Code, Digest};
use serde::{Serialize, Serializer};

/// How a client fares at one moment. Comparing two tells whether anything that matters changed.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Status {
    /// A stream to the plane is open.
    pub connected: bool,
    /// Every subscribed type is complete, so that decisions follow rules
    /// instead of the startup policy.
    pub ready: bool,
    /// What the client holds of each subscribed type, by type name.
    pub kinds: Vec<KindStatus>,
    /// The client's own identity.
    pub identity: IdentityStatus,
    /// Why the last stream ended or could not be opened; gone when one is open.
    pub plane_error: Option<String>,
    /// Why the snapshot on disk was not used or could not be written; gone
    /// with the next good write.
    pub snapshot_error: Option<String>,
}

impl Status {
    /// Every subscribed type is complete: the same as [`ready`](Self::ready).
    pub fn synced(&self) -> bool {
        self.ready
    }

    /// What the client holds of one type.
    pub fn kind(&self, type_name: &str) -> Option<&KindStatus> {
        self.kinds.iter().find(|k| k.type_name == type_name)
    }

    /// Rules in force, over all types.
    pub fn items(&self) -> usize {
        self.kinds.iter().map(|k| k.items).sum()
    }

    /// Rules rejected, over all types, each with its type.
    pub fn rejected(&self) -> impl Iterator<Item = (&str, &RejectedRule)> {
        self.kinds.iter().flat_map(|k| k.rejected.iter().map(|r| (k.type_name.as_str(), r)))
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match (self.connected, self.ready) {
            (true, true) => "connected",
            (true, false) => "connected, waiting for rules",
            (false, true) => "disconnected, deciding by the last good rules",
            (false, false) => "disconnected, without rules",
        };
        f.write_str(state)?;
        for kind in &self.kinds {
            let name = kind.type_name.rsplit('/').next().unwrap_or_default();
            write!(f, "; {name} revision {}, {} in force", kind.revision, kind.items)?;
            if kind.source == Some(Source::Disk) {
                f.write_str(" (from disk)")?;
            }
            for rejected in &kind.rejected {
                write!(f, ", rejected {}: {}", rejected.key, rejected.reason)?;
            }
        }
        for (what, error) in [
            ("plane", &self.plane_error),
            ("identity", &self.identity.last_error),
            ("snapshot", &self.snapshot_error),
        ] {
            if let Some(error) = error {
                write!(f, "; {what}: {error}")?;
            }
        }
        Ok(())
    }
}

/// What a client holds of one type.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct KindStatus {
    /// `<group>/<version>/<Kind>`.
    pub type_name: String,
    /// Of the plane's store, of the last state that was applied; 0 before any.
    pub revision: i64,
    /// Rules in force.
    pub items: usize,
    /// The rules in force: key and digest of the version held.
    pub rules: BTreeMap<String, ItemDigest>,
    /// Rules whose newest version was not applied, by key.
    pub rejected: Vec<RejectedRule>,
    /// The state is complete: all that the plane had for the client, at `revision`.
    pub synced: bool,
    /// Where the state came from; `None` before there is any.
    pub source: Option<Source>,
}

/// A rule version that the client refused.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct RejectedRule {
    /// `<name>/<namespace>`.
    pub key: String,
    /// Of the refused version.
    pub digest: ItemDigest,
    /// Why, beginning with the code.
    pub reason: String,
    /// An older version of it stays in force.
    pub last_good_in_force: bool,
}

/// A digest that prints as text also in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ItemDigest(pub Digest);

impl Serialize for ItemDigest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

/// Where a client's state of a type came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// The last good snapshot on disk; the plane has not confirmed it since the start.
    Disk,
    /// The plane.
    Plane,
}

/// The client's own identity.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct IdentityStatus {
    /// SPIFFE ID, once there is a certificate.
    pub spiffe_id: Option<String>,
    /// When the certificate ends, Unix seconds.
    pub not_after: Option<i64>,
    /// Why the last attempt to get or renew it failed; gone when one succeeds.
    pub last_error: Option<String>,
}

/// A reason with its code before it, unless it begins with one already.
pub(crate) fn coded(code: Code, message: &str) -> String {
    if message.starts_with("RC") { message.to_owned() } else { format!("{code} {message}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_prints_for_people_and_as_json() {
        let rules = BTreeMap::from([("a/default".into(), ItemDigest(Digest::of(b"a")))]);
        let kind = KindStatus {
            type_name: "g/v1/ConditionRoute".into(),
            revision: 3,
            items: 1,
            rules,
            synced: true,
            source: Some(Source::Disk),
            rejected: vec![RejectedRule {
                key: "b/default".into(),
                digest: ItemDigest(Digest::of(b"b")),
                reason: coded(Code::ItemInvalid, "no rule"),
                last_good_in_force: false,
            }],
        };
        let status = Status { ready: true, kinds: vec![kind], ..Status::default() };
        let json = serde_json::to_value(&status).expect("a status is plain data");
        assert_eq!(json["kinds"][0]["source"], "disk");
        assert_eq!(json["kinds"][0]["rejected"][0]["reason"], "RC0609 no rule");
        let digest = json["kinds"][0]["rules"]["a/default"].as_str();
        assert!(digest.is_some_and(|d| d.starts_with("sha256:")));
        assert_eq!((status.items(), status.rejected().count()), (1, 1));
        assert_eq!(
            status.to_string(),
            "disconnected, deciding by the last good rules; ConditionRoute revision 3, 1 in force \
             (from disk), rejected b/default: RC0609 no rule"
        );
    }
}
