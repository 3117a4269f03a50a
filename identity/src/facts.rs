//! What the authority attested when it issued a certificate, carried in it.
//!
//! The extension is not critical, of OID [`OID`], and holds one DER
//! `UTF8String` with a JSON object. Readers ignore members they do not know.

use rulecast_api::Code;
use serde::{Deserialize, Serialize};

use crate::IdentityError;

/// `2.25.4871203356917203461`: under the arc for numbers that need no registration.
pub const OID: &[u64] = &[2, 25, 4_871_203_356_917_203_461];

/// Longest JSON in bytes.
const MAX_LEN: usize = 4096;

/// What is known of the holder of a certificate beyond its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AttestedFacts {
    /// The namespace attested.
    pub namespace: String,
    /// The application or service account attested.
    pub application: String,
    /// How it was attested first: `join-token`, `kubernetes`, or `service` (of the authority
    /// itself).
    pub method: String,
    /// Names the join token in audit logs; it is not the token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_id: Option<String>,
    /// The pod, where a Kubernetes service-account token was shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodFacts>,
}

/// A pod as the Kubernetes API server vouched for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodFacts {
    /// `metadata.name`, in the namespace of the facts.
    pub name: String,
    /// `metadata.uid`.
    pub uid: String,
    /// `spec.nodeName`, once the pod is scheduled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
}

impl AttestedFacts {
    /// The extension's value in DER; refuses facts above 4 KiB.
    pub fn encode(&self) -> Result<Vec<u8>, IdentityError> {
        let json = serde_json::to_vec(self).map_err(|e| invalid(&e.to_string()))?;
        let len = json.len();
        if len > MAX_LEN {
            return Err(invalid("they are longer than 4096 bytes"));
        }
        let mut der = vec![0x0c];
        match len {
            0..=0x7f => der.push(len as u8),
            0x80..=0xff => der.extend([0x81, len as u8]),
            _ => der.extend([0x82, (len >> 8) as u8, len as u8]),
        }
        der.extend(json);
        Ok(der)
    }

    /// From the extension's value.
    pub fn decode(der: &[u8]) -> Result<Self, IdentityError> {
        let (len, json) = match *der {
            [0x0c, len @ 0..=0x7f, ref rest @ ..] => (usize::from(len), rest),
            [0x0c, 0x81, len, ref rest @ ..] => (usize::from(len), rest),
            [0x0c, 0x82, hi, lo, ref rest @ ..] => (usize::from(hi) << 8 | usize::from(lo), rest),
            _ => return Err(invalid("the extension holds no UTF8String")),
        };
        if len != json.len() || len > MAX_LEN {
            return Err(invalid("the extension has another length than it says"));
        }
        serde_json::from_slice(json).map_err(|e| invalid(&e.to_string()))
    }
}

fn invalid(why: &str) -> IdentityError {
    IdentityError::new(
        Code::PeerIdentity,
        format!("the attested facts of the certificate cannot be used: {why}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn round_trips(namespace in ".{0,300}", token_id in proptest::option::of("[a-f0-9]{0,16}")) {
            let facts = AttestedFacts {
                namespace, application: "shop".into(), method: "join-token".into(), token_id, pod: None,
            };
            let der = facts.encode()?;
            prop_assert_eq!(AttestedFacts::decode(&der)?, facts);
        }

        #[test]
        fn never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = AttestedFacts::decode(&bytes);
        }
    }

    #[test]
    fn unknown_members_are_ignored() {
        let json = br#"{"namespace":"a","application":"b","method":"c","later":[1]}"#;
        let der = [&[0x0c, json.len() as u8], &json[..]].concat();
        assert_eq!(AttestedFacts::decode(&der).expect("decodes").application, "b");
    }
}
