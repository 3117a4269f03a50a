//! AuthenticationPolicy as a Rulecast policy: how a server takes connections to a port.
//!
//! The rules come in the order in which they decide. The first whose port level decides for the
//! port wins; without one, the first that decides as a whole.

use prost::Message as _;
use rulecast_api::{
    Code,
    proto::rules::v1::{self as wire, TlsMode},
};
use rulecast_policy::{
    Attributes, CommitError, Policy,
    endpoints::Table,
    ids::Ids,
    outcome::{Did, OutcomeWriter, RuleOutcome, tag},
    request::{Request, SHADOW},
};

/// The policy.
#[derive(Debug, Default)]
pub struct AuthenticationPolicy {
    rules: Ids<Rule>,
}

/// A rule, ready to be evaluated. A mode of 0 leaves it undecided.
#[derive(Debug)]
struct Rule {
    mode: u8,
    /// Ascending by port.
    ports: Vec<(u16, u8)>,
    /// The slot of the port.
    port: u16,
}

impl Rule {
    fn compile(spec: &[u8], attributes: &mut Attributes) -> Result<Self, CommitError> {
        let refuse = |field: String, message: String| {
            CommitError::new(Code::RuleRefused.as_str(), field, message)
        };
        let message = wire::AuthenticationPolicy::decode(spec).map_err(|error| {
            refuse("spec".into(), format!("is no AuthenticationPolicy message: {error}"))
        })?;
        let mode = |field: String, mode: i32| match TlsMode::try_from(mode) {
            Ok(mode) => Ok(mode as u8),
            Err(_) => Err(refuse(field, format!("the mode {mode} is of a newer version"))),
        };
        let mut ports = Vec::with_capacity(message.ports.len());
        for (i, level) in message.ports.iter().enumerate() {
            let field = format!("portLevel[{i}]");
            let port = u16::try_from(level.port)
                .map_err(|_| refuse(field.clone(), format!("{} is no port", level.port)))?;
            ports.push((port, mode(field, level.mode)?));
        }
        ports.sort_unstable_by_key(|(port, _)| *port);
        if let Some(pair) = ports.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            let message = format!("port {} stands there twice", pair[0].0);
            return Err(refuse("portLevel".into(), message));
        }
        let mode = mode("action".into(), message.mode)?;
        Ok(Self { mode, ports, port: attributes.slot("destination.port") })
    }

    /// What it says of the port itself.
    fn level(&self, request: &Request<'_>) -> u8 {
        let port = request.text(self.port).and_then(|text| text.parse::<u16>().ok());
        let at = port.and_then(|port| self.ports.binary_search_by_key(&port, |(p, _)| *p).ok());
        at.and_then(|at| self.ports.get(at)).map_or(0, |(_, mode)| *mode)
    }
}

impl Policy for AuthenticationPolicy {
    fn commit(
        &mut self,
        id: u32,
        spec: &[u8],
        attributes: &mut Attributes,
    ) -> Result<(), CommitError> {
        let rule = Rule::compile(spec, attributes)?;
        self.rules.insert(id, rule);
        Ok(())
    }

    fn remove(&mut self, id: u32) {
        self.rules.remove(&id);
    }

    fn endpoints(&mut self, _: u32, _: Option<Table>) -> Result<(), CommitError> {
        Ok(())
    }

    fn has_rule(&self, id: u32) -> bool {
        self.rules.contains_key(&id)
    }

    fn has_set(&self, _: u32) -> bool {
        false
    }

    fn evaluate(
        &mut self,
        request: &Request<'_>,
        outcome: &mut OutcomeWriter<'_>,
        at_work: &mut dyn FnMut(u32),
    ) {
        self.decide(request, outcome, at_work, |_, _, _| {});
    }

    fn explain(
        &mut self,
        request: &Request<'_>,
        outcome: &mut OutcomeWriter<'_>,
        at_work: &mut dyn FnMut(u32),
    ) {
        self.decide(request, outcome, at_work, |outcome, index, line| {
            outcome.effect(tag::TEXT, index, line().as_bytes());
        });
    }
}

impl AuthenticationPolicy {
    /// `say` hears why; an explanation tells of the decision itself.
    fn decide(
        &self,
        request: &Request<'_>,
        outcome: &mut OutcomeWriter<'_>,
        at_work: &mut dyn FnMut(u32),
        say: impl Fn(&mut OutcomeWriter<'_>, u16, &dyn Fn() -> String),
    ) {
        for by_port in [true, false] {
            for (index, reference) in request.rules().enumerate() {
                at_work(reference.id);
                let Some(rule) = self.rules.get(&reference.id) else { continue };
                let mode = if by_port { rule.level(request) } else { rule.mode };
                if mode == 0 {
                    continue;
                }
                let shadow = reference.flags & SHADOW != 0;
                say(outcome, index as u16, &|| {
                    let part = if by_port { "its port level" } else { "its action" };
                    let would = if shadow { "would decide" } else { "decides" };
                    format!("{part} {would}: {}", shown(mode))
                });
                outcome.rule(index, RuleOutcome { did: Did::Applied, remaining: 0 });
                if !shadow {
                    outcome.mode(index as u16, mode);
                    return;
                }
            }
        }
    }
}

fn shown(mode: u8) -> &'static str {
    match TlsMode::try_from(i32::from(mode)) {
        Ok(TlsMode::Disabled) => "DISABLED",
        Ok(TlsMode::Permissive) => "PERMISSIVE",
        Ok(TlsMode::Strict) => "STRICT",
        _ => "NONE",
    }
}

rulecast_policy::export!(AuthenticationPolicy);
