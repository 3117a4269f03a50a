//! What can go wrong with identities, and how to find it inside other errors.

use std::{error::Error as StdError, io};

use rulecast_api::Code;

/// An error of this crate. Printed with its code first: `RC0409 the certificate …`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code} {message}")]
pub struct IdentityError {
    code: Code,
    message: String,
}

impl IdentityError {
    /// Of a code and a message that says what is wrong and what would be right.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// For `docs/errors.md`.
    pub fn code(&self) -> Code {
        self.code
    }

    /// Without the code.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Whether the same attempt may succeed later without anybody's doing.
    pub fn is_temporary(&self) -> bool {
        matches!(self.code, Code::AuthorityUnreachable | Code::RateLimited | Code::Draining)
    }

    /// The error of this crate that `error` carries somewhere in its chain: in
    /// TLS and I/O errors, in what tonic makes of them, and in the message of
    /// a gRPC status.
    pub fn find(error: &(dyn StdError + 'static)) -> Option<Self> {
        let mut next = Some(error);
        let mut text = None;
        while let Some(error) = next {
            if let Some(found) = error.downcast_ref::<Self>() {
                return Some(found.clone());
            }
            if let Some(tls) = error.downcast_ref::<rustls::Error>() {
                return of_tls(tls);
            }
            // io::Error's own source() skips the error that it wraps.
            if let Some(inner) = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref)
                && let Some(found) = Self::find(inner)
            {
                return Some(found);
            }
            if let Some(status) = error.downcast_ref::<tonic::Status>() {
                text = text.or_else(|| Self::read(status.message()));
            } else {
                // HTTP/2 keeps only the text of an I/O error.
                text = Self::read(&error.to_string()).or(text);
            }
            next = error.source();
        }
        text
    }

    /// What a gRPC call to the authority failed with; a status without one of
    /// our codes counts as [`Code::AuthorityUnreachable`].
    pub fn from_status(status: &tonic::Status) -> Self {
        Self::find(status).unwrap_or_else(|| {
            Self::new(
                Code::AuthorityUnreachable,
                format!(
                    "the certificate authority gave no answer ({}: {}); see that it runs and is \
                     reachable",
                    status.code(),
                    Chain(status)
                ),
            )
        })
    }

    /// Reads `RC0409 text` or `RC0409: text`, also in the middle of a text.
    fn read(text: &str) -> Option<Self> {
        let (at, code) = text.match_indices("RC0").find_map(|(at, _)| {
            let printed = text.get(at..at + 6)?;
            Code::ALL.iter().find(|code| code.as_str() == printed).map(|&code| (at, code))
        })?;
        let message = text.get(at + 6..)?.trim_start_matches(':').trim();
        Some(Self::new(code, message))
    }
}

/// An error with its causes, on one line, none twice.
pub(crate) struct Chain<'a>(pub &'a (dyn StdError + 'static));

impl std::fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut last = self.0.to_string();
        f.write_str(&last)?;
        let mut next = self.0.source();
        while let Some(error) = next {
            let text = error.to_string();
            if !last.contains(&text) {
                write!(f, ": {text}")?;
            }
            last = text;
            next = error.source();
        }
        Ok(())
    }
}

/// What a TLS error means for identities, if it is about them.
fn of_tls(error: &rustls::Error) -> Option<IdentityError> {
    use rustls::{AlertDescription as Alert, CertificateError as Cert, Error};
    let said = |code, what| {
        Some(IdentityError::new(code, format!("the server refuses our certificate: {what}")))
    };
    match error {
        Error::InvalidCertificate(Cert::Other(other)) => {
            other.0.downcast_ref::<IdentityError>().cloned()
        }
        Error::InvalidCertificate(other) => Some(IdentityError::new(
            Code::PeerUntrusted,
            format!("the peer's certificate is refused: {other:?}"),
        )),
        Error::NoCertificatesPresented => Some(IdentityError::new(
            Code::CredentialMissing,
            "the peer shows no certificate; connect with one of this authority",
        )),
        Error::AlertReceived(alert) => match alert {
            Alert::UnknownCA => said(Code::PeerUntrusted, "it is of another authority"),
            Alert::CertificateExpired => {
                said(Code::PeerExpired, "it is outside its time; see that clocks agree")
            }
            Alert::AccessDenied => said(Code::PeerTrustDomain, "it is of another trust domain"),
            Alert::CertificateUnknown | Alert::BadCertificate | Alert::UnsupportedCertificate => {
                said(Code::PeerIdentity, "it has no identity that may connect here")
            }
            Alert::CertificateRequired => said(Code::CredentialMissing, "there is none"),
            _ => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_codes_where_they_hide() {
        let ours = IdentityError::new(Code::PeerExpired, "too old");
        let io = io::Error::other(ours.clone());
        assert_eq!(IdentityError::find(&io), Some(ours));
        let status = tonic::Status::permission_denied("RC0405: asks for another identity");
        let found = IdentityError::from_status(&status);
        assert_eq!(
            (found.code(), found.message()),
            (Code::CsrIdentity, "asks for another identity")
        );
        let silent = IdentityError::from_status(&tonic::Status::unavailable("down"));
        assert_eq!(silent.code(), Code::AuthorityUnreachable);
        assert!(silent.is_temporary());
        let tls =
            io::Error::other(rustls::Error::AlertReceived(rustls::AlertDescription::UnknownCA));
        assert_eq!(IdentityError::find(&tls).map(|e| e.code()), Some(Code::PeerUntrusted));
        assert_eq!(IdentityError::read("RC0999 RC04"), None);
    }
}
