//! Join tokens: what a new application shows for its first certificate.
//!
//! Text: `rcjt1.` and, in base64url without padding, the SHA-256 of the
//! authority's root certificate (32 bytes), the secret (32 bytes), the trust
//! domain, and the first 4 bytes of the SHA-256 of all before.

use std::{fmt, str::FromStr};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use rulecast_api::{Code, spiffe::valid_trust_domain};
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use crate::IdentityError;

const PREFIX: &str = "rcjt1.";

/// A join token. It names the authority by its root, so that the first contact
/// is authenticated in both directions. Never printed by `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken {
    /// The authority's.
    pub trust_domain: String,
    /// SHA-256 of the root certificate in DER.
    pub root_fingerprint: [u8; 32],
    /// Known to the holder alone; the authority keeps its SHA-256.
    pub secret: Zeroizing<[u8; 32]>,
}

impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinToken").field("id", &self.id()).finish_non_exhaustive()
    }
}

impl JoinToken {
    /// Names the token in logs: the first 8 bytes of its hash, hexadecimal.
    pub fn id(&self) -> String {
        token_id(&secret_hash(&*self.secret))
    }

    /// The text that applications are given.
    pub fn to_text(&self) -> Zeroizing<String> {
        let mut bytes = Zeroizing::new(Vec::with_capacity(68 + self.trust_domain.len()));
        bytes.extend(self.root_fingerprint);
        bytes.extend(*self.secret);
        bytes.extend(self.trust_domain.as_bytes());
        let check = Sha256::digest(&bytes);
        bytes.extend(&check[..4]);
        Zeroizing::new(format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(&bytes)))
    }

    /// The secret as sent to the authority, base64url.
    pub fn bearer(&self) -> Zeroizing<String> {
        Zeroizing::new(URL_SAFE_NO_PAD.encode(*self.secret))
    }
}

/// SHA-256 of a secret: what the authority keeps.
pub fn secret_hash(secret: &[u8]) -> [u8; 32] {
    Sha256::digest(secret).into()
}

/// The name in logs of the token with this [`secret_hash`].
pub fn token_id(hash: &[u8; 32]) -> String {
    hex::encode(&hash[..8])
}

/// Reads what [`JoinToken::bearer`] wrote.
pub fn secret_of_bearer(text: &str) -> Result<Zeroizing<[u8; 32]>, IdentityError> {
    let bytes = Zeroizing::new(
        URL_SAFE_NO_PAD.decode(text).map_err(|_| invalid("its secret is not base64url"))?,
    );
    let secret = <[u8; 32]>::try_from(bytes.as_slice())
        .map_err(|_| invalid("its secret is not 32 bytes"))?;
    Ok(Zeroizing::new(secret))
}

impl FromStr for JoinToken {
    type Err = IdentityError;

    fn from_str(text: &str) -> Result<Self, IdentityError> {
        let text = text
            .trim()
            .strip_prefix(PREFIX)
            .ok_or_else(|| invalid("it does not begin with rcjt1."))?;
        if text.len() > 600 {
            return Err(invalid("it is too long"));
        }
        let bytes = Zeroizing::new(
            URL_SAFE_NO_PAD.decode(text).map_err(|_| invalid("it is not base64url"))?,
        );
        let (body, check) =
            bytes.split_last_chunk::<4>().ok_or_else(|| invalid("it is cut short"))?;
        if Sha256::digest(body)[..4] != check[..] {
            return Err(invalid("its checksum is wrong; it was cut short or mistyped"));
        }
        let short = || invalid("it is cut short");
        let (root_fingerprint, rest) = body.split_first_chunk::<32>().ok_or_else(short)?;
        let (secret, domain) = rest.split_first_chunk::<32>().ok_or_else(short)?;
        let trust_domain = std::str::from_utf8(domain)
            .ok()
            .filter(|domain| valid_trust_domain(domain))
            .ok_or_else(|| invalid("its trust domain is not 1 to 255 of a-z0-9._-"))?;
        Ok(Self {
            trust_domain: trust_domain.into(),
            root_fingerprint: *root_fingerprint,
            secret: Zeroizing::new(*secret),
        })
    }
}

fn invalid(why: &str) -> IdentityError {
    IdentityError::new(
        Code::TokenInvalid,
        format!("the join token cannot be used: {why}; make one with `rulecast ca token create`"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn round_trips_and_finds_typing_errors(
            domain in "[a-z0-9._-]{1,255}", root in any::<[u8; 32]>(), secret in any::<[u8; 32]>(),
            at in any::<usize>(), with in "[A-Za-z0-9_-]",
        ) {
            let token = JoinToken {
                trust_domain: domain, root_fingerprint: root, secret: Zeroizing::new(secret),
            };
            let text = token.to_text();
            prop_assert_eq!(&text.parse::<JoinToken>()?, &token);
            prop_assert_eq!(secret_of_bearer(&token.bearer())?, token.secret);
            let at = PREFIX.len() + at % (text.len() - PREFIX.len());
            let mut wrong = text.to_string();
            wrong.replace_range(at..=at, &with);
            if wrong != *text {
                prop_assert_eq!(wrong.parse::<JoinToken>().expect_err("typo").code(), Code::TokenInvalid);
            }
        }

        #[test]
        fn never_panics(text in "(rcjt1[.])?[A-Za-z0-9_.-]{0,120}") {
            let _ = text.parse::<JoinToken>();
            let _ = secret_of_bearer(&text);
        }
    }

    #[test]
    fn debug_hides_the_secret() {
        let token = JoinToken {
            trust_domain: "td".into(),
            root_fingerprint: [1; 32],
            secret: Zeroizing::new([0x41; 32]),
        };
        let shown = format!("{token:?}");
        assert!(!shown.contains("65") && !shown.contains("4141") && shown.contains(&token.id()));
    }
}
