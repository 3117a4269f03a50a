use std::collections::BTreeMap;

use crate::{
    abi::{self, Packed, Status},
    answer,
    endpoints::Table,
    outcome::OutcomeWriter,
    policy::{Attributes, CommitError, Policy},
    request::Request,
};

/// Answers the calls of the ABI with a policy: what every module does, native or not.
#[derive(Debug, Default)]
pub struct Driver<P> {
    policy: P,
    attributes: Attributes,
    rules: BTreeMap<u32, Vec<u16>>,
    /// The list of rules that the policy has prepared for.
    prepared: Option<Vec<u8>>,
}

impl<P: Policy> Driver<P> {
    /// Around a fresh policy.
    pub fn new(policy: P) -> Self {
        Self { policy, attributes: Attributes::default(), rules: BTreeMap::new(), prepared: None }
    }

    /// `rule_commit`: the answer is written at the scratch buffer's start.
    pub fn commit(&mut self, id: u32, spec: &[u8], scratch: &mut [u8]) -> i64 {
        self.remove(id);
        self.attributes.begin();
        let committed = self.policy.commit(id, spec, &mut self.attributes);
        let slots = self.attributes.end();
        let error = match (committed, slots) {
            (Ok(()), Some(slots)) => {
                let names = self.attributes.names(&slots);
                let written = answer::write_accepted(scratch, names.into_iter());
                self.rules.insert(id, slots);
                if let Some(len) = written {
                    return packed(Status::Ok, 0, len);
                }
                self.remove(id);
                return Packed::empty(Status::TooLarge).pack();
            }
            (Ok(()), None) => {
                self.policy.remove(id);
                CommitError::new("RC0608", "", "more attributes than there are slots")
            }
            (Err(error), slots) => {
                self.attributes.release(&slots.unwrap_or_default());
                self.policy.remove(id);
                error
            }
        };
        refused(scratch, &error)
    }

    /// `rule_remove`.
    pub fn remove(&mut self, id: u32) {
        self.prepared = None;
        if let Some(slots) = self.rules.remove(&id) {
            self.attributes.release(&slots);
            self.policy.remove(id);
        }
    }

    /// `endpoints`; an empty table forgets the set.
    pub fn endpoints(&mut self, set: u32, table: Vec<u8>, scratch: &mut [u8]) -> i64 {
        let table = match table.is_empty() {
            true => None,
            false => match Table::read(table) {
                Some(table) => Some(table),
                None => return Packed::empty(Status::Malformed).pack(),
            },
        };
        match self.policy.endpoints(set, table) {
            Ok(()) => Packed::empty(Status::Ok).pack(),
            Err(error) => refused(scratch, &error),
        }
    }

    /// `evaluate`: the request is the scratch buffer's first `len` bytes, the answer follows.
    #[inline]
    pub fn evaluate(&mut self, len: u32, scratch: &mut [u8], at_work: &mut dyn FnMut(u32)) -> i64 {
        self.run(len, scratch, at_work, P::evaluate)
    }

    /// `explain`: as `evaluate`, with the reasons.
    pub fn explain(&mut self, len: u32, scratch: &mut [u8], at_work: &mut dyn FnMut(u32)) -> i64 {
        self.run(len, scratch, at_work, P::explain)
    }

    #[inline]
    fn run(
        &mut self,
        len: u32,
        scratch: &mut [u8],
        at_work: &mut dyn FnMut(u32),
        call: fn(&mut P, &Request<'_>, &mut OutcomeWriter<'_>, &mut dyn FnMut(u32)),
    ) -> i64 {
        let len = len as usize;
        // The answer is aligned, so that a host may read words.
        let start = len.next_multiple_of(8);
        let Some((head, tail)) = scratch.split_at_mut_checked(start) else {
            return Packed::empty(Status::Malformed).pack();
        };
        let Some(request) = head.get(..len).and_then(Request::read) else {
            return Packed::empty(Status::Malformed).pack();
        };
        let without = request.set == abi::NO_SET && request.endpoints() == 0;
        if !without && !self.policy.has_set(request.set) {
            return Packed::empty(Status::UnknownSet).pack();
        }
        if !self.prepared.as_deref().is_some_and(|known| same(known, request.list())) {
            for rule in request.rules() {
                if !self.policy.has_rule(rule.id) {
                    at_work(rule.id);
                    return Packed::empty(Status::UnknownRule).pack();
                }
            }
            self.policy.prepare(&request, at_work);
            let list = self.prepared.get_or_insert_default();
            list.clear();
            list.extend_from_slice(request.list());
        }
        let mut outcome = OutcomeWriter::new(tail, request.rules().len());
        call(&mut self.policy, &request, &mut outcome, at_work);
        at_work(abi::NO_RULE);
        match outcome.finish() {
            Some(len) => packed(Status::Ok, start, len),
            None => Packed::empty(Status::TooLarge).pack(),
        }
    }
}

/// Whether two lists are equal, by words: in a module `memcmp` goes byte by byte.
#[inline]
fn same(one: &[u8], other: &[u8]) -> bool {
    let (ones, others) = (one.as_chunks::<8>().0, other.as_chunks::<8>().0);
    let equal =
        |(one, other): (&[u8; 8], &[u8; 8])| u64::from_le_bytes(*one) == u64::from_le_bytes(*other);
    one.len() == other.len() && ones.iter().zip(others).all(equal)
}

fn packed(status: Status, offset: usize, len: usize) -> i64 {
    Packed { status, offset: offset as u32, len: len as u32 }.pack()
}

fn refused(scratch: &mut [u8], error: &CommitError) -> i64 {
    match answer::write_refused(scratch, error) {
        Some(len) => packed(Status::Refused, 0, len),
        None => Packed::empty(Status::TooLarge).pack(),
    }
}

/// A policy behind the calls of the ABI, outside of any sandbox.
pub trait Guest: Send {
    /// The scratch buffer.
    fn scratch(&mut self) -> &mut [u8];
    /// The rule at work, or [`abi::NO_RULE`].
    fn rule_at_work(&self) -> u32;
    /// As the export of that name.
    fn rule_commit(&mut self, id: u32, spec: &[u8]) -> i64;
    /// As the export of that name.
    fn rule_remove(&mut self, id: u32);
    /// As the export of that name.
    fn endpoints(&mut self, set: u32, table: &[u8]) -> i64;
    /// As the export of that name.
    fn evaluate(&mut self, len: u32) -> i64;
    /// As the export of that name.
    fn explain(&mut self, len: u32) -> i64;
}

/// Runs a policy natively, on the same bytes as in the sandbox: for tests and debuggers.
#[derive(Debug)]
pub struct Native<P> {
    driver: Driver<P>,
    scratch: Box<[u8]>,
    rule: u32,
}

impl<P: Policy> Native<P> {
    /// Around a fresh policy.
    pub fn new(policy: P) -> Self {
        Self {
            driver: Driver::new(policy),
            scratch: vec![0; abi::SCRATCH].into_boxed_slice(),
            rule: abi::NO_RULE,
        }
    }
}

impl<P: Policy + Send> Guest for Native<P> {
    fn scratch(&mut self) -> &mut [u8] {
        &mut self.scratch
    }

    fn rule_at_work(&self) -> u32 {
        self.rule
    }

    fn rule_commit(&mut self, id: u32, spec: &[u8]) -> i64 {
        self.driver.commit(id, spec, &mut self.scratch)
    }

    fn rule_remove(&mut self, id: u32) {
        self.driver.remove(id);
    }

    fn endpoints(&mut self, set: u32, table: &[u8]) -> i64 {
        self.driver.endpoints(set, table.to_vec(), &mut self.scratch)
    }

    fn evaluate(&mut self, len: u32) -> i64 {
        let rule = &mut self.rule;
        self.driver.evaluate(len, &mut self.scratch, &mut |id| *rule = id)
    }

    fn explain(&mut self, len: u32) -> i64 {
        let rule = &mut self.rule;
        self.driver.explain(len, &mut self.scratch, &mut |id| *rule = id)
    }
}
