//! What stands on the rules about themselves: accepted or not, and who obeys them.
//!
//! [`Planner`] decides, without I/O, what is to be written next; [`run`] does it. Of several
//! planes one writes, the leader. It reads what stands on an object before it writes to it,
//! and writes nothing that stands there already.
//!
//! Two conditions:
//!
//! | Accepted | when |
//! |---|---|
//! | True/Accepted | the current generation is valid |
//! | False/Invalid | it is not; the message says why |
//!
//! | Programmed | when |
//! |---|---|
//! | True/Applied | all connected clients that should have this generation have it |
//! | True/NoClients | no connected client should have it |
//! | True/Disabled | the rule is disabled, and no client has it any more |
//! | Unknown/Pending | some clients have not answered yet |
//! | False/Lagging | some clients have not answered within the deadline |
//! | False/Rejected | some clients refuse it |
//! | False/LastGood | the generation is not valid; an earlier one stays in force |
//! | False/Invalid | the generation is not valid, and nothing is in force |
//!
//! Programmed latches: once it is true for a generation, clients that come, go and come back
//! do not unset it; a refusal does. The latch is what stands on the object, so it outlives
//! the plane. It belongs to a generation: a store that has none should not have status.
//!
//! While a generation rolls out, its counts are written as they move. After that, a mere move
//! is written when it has stayed for [`StatusConfig::stable`].

use std::{sync::Arc, time::Duration};

use rulecast_api::Kind;

mod object;
mod planner;
mod queue;
mod shell;
mod standing;
#[cfg(test)]
mod tests;
mod trouble;
mod wanted;
mod world;

pub use planner::{Failure, Notice, Planner, Step, Ticket};
pub use shell::{Lead, run};
pub use wanted::Reason;

/// An object: its kind, and its key `<name>/<namespace>`.
type Key = (Kind, Arc<str>);

/// How status is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusConfig {
    /// How long a client may take to answer before it lags.
    pub ack_deadline: Duration,
    /// Most writes in a second. An object is written at most once a second.
    pub per_second: usize,
    /// How long a roll-out that goes on is watched before its counts are written.
    pub gather: Duration,
    /// How long a mere move of counts must stay before it is written. A leader that has just
    /// begun also waits so long for clients that may come back to it.
    pub stable: Duration,
    /// Longest time for a read or a write.
    pub timeout: Duration,
}

impl Default for StatusConfig {
    /// 10 s; 20; 500 ms; 10 s; 10 s.
    fn default() -> Self {
        Self {
            ack_deadline: crate::rollout::ACK_DEADLINE,
            per_second: 20,
            gather: Duration::from_millis(500),
            stable: Duration::from_secs(10),
            timeout: Duration::from_secs(10),
        }
    }
}
