//! How a server takes connections.

use std::{fmt, sync::Arc};

use rulecast_policy::outcome::{self, tag};

use super::{
    inbound::Inbound,
    kinds::{POLICIES, slot},
    local::{Asked, LOCAL, Local},
    policies::Policies,
    rule_set::{Address, Entry, RuleSet},
    worker::{Evaluated, Sink},
};

/// How connections are taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TlsMode {
    /// No policy decides; the server's own setting counts.
    #[default]
    Undecided,
    /// Plaintext only.
    Disabled,
    /// Plaintext and mutual TLS.
    Permissive,
    /// Mutual TLS only.
    Strict,
}

impl fmt::Display for TlsMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Undecided => "undecided",
            Self::Disabled => "plaintext only",
            Self::Permissive => "plaintext and mutual TLS",
            Self::Strict => "mutual TLS only",
        })
    }
}

impl Policies {
    /// Decides how connections at a port are taken. [`TlsMode::Strict`] after a fault of a rule
    /// in force; the log says which.
    pub fn authenticate(&self, rules: &RuleSet, port: u16) -> TlsMode {
        let kind = rules.kind(slot::AUTHENTICATION);
        let type_name = POLICIES[slot::AUTHENTICATION].type_name;
        let Some(engine) = self.engine(slot::AUTHENTICATION) else {
            let none = kind.entries().is_empty();
            return if none { TlsMode::Undecided } else { TlsMode::Strict };
        };
        LOCAL.with_borrow_mut(|local| {
            let Local { workers, list, .. } = local;
            let matching = kind.matching(Address::default(), list);
            if matching.list.is_empty() {
                return TlsMode::Undecided;
            }
            let asked = Asked {
                type_name,
                engine,
                rules: kind,
                matching,
                call: &Inbound::new().port(port),
                endpoints: None,
                candidates: &[],
                draw: None,
                explain: false,
            };
            let (mut mode, mut faults) = (Mode::default(), Vec::new());
            asked.run(workers, &mut mode, &mut faults);
            match faults.iter().find(|fault| !fault.shadow) {
                Some(fault) => {
                    let (rule, fault) = (fault.key.as_deref(), &fault.fault);
                    tracing::warn!(port, rule, %fault, "only mutual TLS is taken");
                    TlsMode::Strict
                }
                None => mode.0.unwrap_or_default(),
            }
        })
    }
}

/// Takes the first mode of a rule in force.
#[derive(Default)]
struct Mode(Option<TlsMode>);

impl Sink for Mode {
    fn begin(&mut self) {
        self.0 = None;
    }

    fn effect(
        &mut self,
        effect: outcome::Effect<'_>,
        rule: Option<(u32, &Entry, &Arc<str>)>,
    ) -> Result<(), &'static str> {
        if effect.tag != tag::MODE {
            return Ok(());
        }
        let Some((_, entry, _)) = rule else { return Err("a mode is no rule's") };
        let mode = match effect.bytes {
            [1] => TlsMode::Disabled,
            [2] => TlsMode::Permissive,
            [3] => TlsMode::Strict,
            _ => return Err("a mode is unknown to this version"),
        };
        if !entry.shadow && self.0.is_none() {
            self.0 = Some(mode);
        }
        Ok(())
    }

    fn rule(&mut self, _: Evaluated<'_>) -> Result<(), &'static str> {
        Ok(())
    }
}
