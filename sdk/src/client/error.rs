//! Why there is no client.

use rulecast_api::Code;

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
    /// There is no identity, and waiting would not bring one.
    #[error(transparent)]
    Identity(#[from] rulecast_identity::IdentityError),
    /// The built-in policies cannot be run here.
    #[error("{code} the built-in policies cannot be loaded: {message}")]
    Policies {
        /// For `docs/errors.md`.
        code: Code,
        /// Why.
        message: String,
    },
    /// No complete snapshot came in time.
    #[error(
        "{} no complete rules after {waited_secs} s (missing: {missing}); {reason}; see that the \
         plane is up and reachable, or choose a startup policy that does not wait",
        Code::NotReady
    )]
    NotReady {
        /// How long was waited.
        waited_secs: u64,
        /// The types that are not complete.
        missing: String,
        /// The last error that was met on the way.
        reason: String,
    },
    /// A part of the client ended although nobody asked it to.
    #[error("{} the client's task \"{task}\" ended: {message}", Code::NotReady)]
    TaskEnded {
        /// Which.
        task: &'static str,
        /// How.
        message: String,
    },
}
