//! What the authority refuses or cannot do.

use rulecast_api::Code;
use rulecast_identity::IdentityError;
use rulecast_runtime::http::ListenError;

/// An error of the authority. Printed with its code first: `RC0403 the join token …`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code} {message}")]
pub struct CaError {
    code: Code,
    message: String,
}

impl CaError {
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

    pub(crate) fn authority(message: impl Into<String>) -> Self {
        Self::new(Code::AuthorityInvalid, message)
    }
}

impl From<IdentityError> for CaError {
    fn from(error: IdentityError) -> Self {
        Self::new(error.code(), error.message())
    }
}

impl From<ListenError> for CaError {
    fn from(error: ListenError) -> Self {
        Self::new(Code::ListenFailed, error.to_string())
    }
}
