//! A policy at work: in the sandbox, or natively for tests and debuggers.

use rulecast_policy::{
    CommitError, Guest,
    abi::{self, Packed, Status},
    answer,
};

use super::{
    Fault, FaultKind,
    instance::{Instance, clean},
    module::{Manifest, Module},
};

/// Everything it answers is checked here.
pub(crate) enum Runner {
    Sandboxed { instance: Box<Instance>, module: Module },
    Native(Box<dyn Guest>),
}

impl Runner {
    pub(crate) fn sandboxed(module: &Module) -> Result<Self, Fault> {
        let instance = Box::new(Instance::new(module)?);
        Ok(Self::Sandboxed { instance, module: module.clone() })
    }

    fn manifest(&self) -> Option<&Manifest> {
        match self {
            Self::Sandboxed { module, .. } => Some(module.manifest()),
            Self::Native(_) => None,
        }
    }

    #[inline]
    pub(crate) fn scratch(&mut self) -> &mut [u8] {
        match self {
            Self::Sandboxed { instance, .. } => instance.scratch(),
            Self::Native(guest) => guest.scratch(),
        }
    }

    #[inline]
    pub(crate) fn memory_size(&self) -> usize {
        match self {
            Self::Sandboxed { instance, .. } => instance.memory_size(),
            Self::Native(_) => 0,
        }
    }

    #[inline]
    fn answer(&mut self, packed: i64) -> Result<(Status, &[u8]), Fault> {
        let scratch = match self {
            Self::Sandboxed { instance, .. } => instance.scratch_ref(),
            Self::Native(guest) => guest.scratch(),
        };
        let packed = Packed::unpack(packed)
            .ok_or_else(|| Fault::new(FaultKind::BadOutput, "answered with an unknown status"))?;
        let bytes = packed.slice(scratch).ok_or_else(|| {
            let message = format!(
                "answered {} bytes at {}, outside of its scratch buffer",
                packed.len, packed.offset
            );
            Fault::new(FaultKind::BadOutput, message)
        })?;
        Ok((packed.status, bytes))
    }

    /// The attributes that the rule needs, each with its slot.
    pub(crate) fn commit(
        &mut self,
        id: u32,
        spec: &[u8],
    ) -> Result<Result<Vec<(u16, String)>, CommitError>, Fault> {
        let packed = match self {
            Self::Sandboxed { instance, .. } => instance.commit(id, spec)?,
            Self::Native(guest) => guest.rule_commit(id, spec),
        };
        let malformed = || Fault::new(FaultKind::BadOutput, "its answer to a rule is malformed");
        match self.answer(packed)? {
            (Status::Ok, bytes) => {
                let list = answer::read_accepted(bytes).ok_or_else(malformed)?;
                let list: Vec<_> = list.into_iter().map(|(s, n)| (s, n.to_owned())).collect();
                let manifest = self.manifest();
                let undeclared =
                    list.iter().find(|(_, name)| manifest.is_some_and(|m| !m.declares(name)));
                if let Some((_, name)) = undeclared {
                    let name = clean(name.as_bytes());
                    let message =
                        format!("a rule wants {name:?}, which the module did not declare");
                    return Err(Fault::new(FaultKind::BadOutput, message));
                }
                Ok(Ok(list))
            }
            (Status::Refused, bytes) => {
                let error = answer::read_refused(bytes).ok_or_else(malformed)?;
                Ok(Err(CommitError {
                    code: clean(error.code.as_bytes()),
                    field: clean(error.field.as_bytes()),
                    message: clean(error.message.as_bytes()),
                }))
            }
            (status, _) => Err(unexpected(status)),
        }
    }

    pub(crate) fn remove(&mut self, id: u32) -> Result<(), Fault> {
        match self {
            Self::Sandboxed { instance, .. } => instance.remove(id),
            Self::Native(guest) => {
                guest.rule_remove(id);
                Ok(())
            }
        }
    }

    /// Gives a table; an empty one forgets the set.
    pub(crate) fn endpoints(&mut self, set: u32, table: &[u8]) -> Result<(), Fault> {
        let packed = match self {
            Self::Sandboxed { instance, .. } => instance.endpoints(set, table)?,
            Self::Native(guest) => guest.endpoints(set, table),
        };
        match self.answer(packed)? {
            (Status::Ok, _) => Ok(()),
            (status, _) => Err(unexpected(status)),
        }
    }

    /// Evaluates the request that stands in the scratch buffer.
    #[inline]
    pub(crate) fn run(&mut self, len: usize, explain: bool) -> Result<&[u8], Fault> {
        let len = len as u32;
        let packed = match self {
            Self::Sandboxed { instance, .. } => instance.run(len, explain)?,
            Self::Native(guest) if explain => guest.explain(len),
            Self::Native(guest) => guest.evaluate(len),
        };
        match self.answer(packed)? {
            (Status::Ok, bytes) => Ok(bytes),
            (Status::TooLarge, _) => {
                let message = format!("its answer is above {} bytes", abi::SCRATCH);
                Err(Fault::new(FaultKind::Oversize, message))
            }
            (status, _) => Err(unexpected(status)),
        }
    }
}

fn unexpected(status: Status) -> Fault {
    Fault::new(FaultKind::BadOutput, format!("answered {status:?}"))
}
