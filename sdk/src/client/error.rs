//! Why there is no client.

use std::time::Duration;

use rulecast_api::Code;
use rulecast_identity::IdentityError;

/// Why `connect()` gave no client.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// An option is missing or wrong.
    #[error("{} option {option}: {message}; {hint}", Code::ConfigInvalid)]
    Config {
        /// The builder's method.
        option: &'static str,
        /// What is wrong.
        message: String,
        /// What would be right.
        hint: &'static str,
    },
    /// An environment variable is missing or wrong.
    #[error("{} {variable}: {message}; {hint}", Code::ConfigInvalid)]
    Environment {
        /// The variable's name.
        variable: &'static str,
        /// What is wrong.
        message: String,
        /// What would be right.
        hint: &'static str,
    },
    /// There is no identity, and waiting would not bring one.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The built-in policies cannot be run here.
    #[error("{code} the built-in policies cannot be loaded: {message}")]
    Policies {
        /// For `docs/errors.md`.
        code: Code,
        /// Why.
        message: String,
    },
    /// No complete rules came in time.
    #[error(
        "{} no complete rules after {waited:?} (missing: {missing}): {reason}; see that plane and \
         authority can be reached, or choose a startup policy that does not wait",
        Code::NotReady
    )]
    NotReady {
        /// How long was waited.
        waited: Duration,
        /// The types that are not complete.
        missing: String,
        /// The last error that was met on the way.
        reason: String,
    },
}

impl ConnectError {
    /// For `docs/errors.md`.
    pub fn code(&self) -> Code {
        match self {
            Self::Config { .. } | Self::Environment { .. } => Code::ConfigInvalid,
            Self::Identity(error) => error.code(),
            Self::Policies { code, .. } => *code,
            Self::NotReady { .. } => Code::NotReady,
        }
    }
}
