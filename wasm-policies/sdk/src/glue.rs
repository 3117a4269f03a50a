//! What [`export!`](crate::export) expands to: the one place where a policy meets the raw
//! memory of its module. Modules are single-threaded, and a host never enters one twice at a
//! time, so the cells below are never borrowed twice.

#![allow(unsafe_code, reason = "the exports of a module are raw pointers and integers")]

use std::{
    cell::UnsafeCell,
    sync::atomic::{AtomicU32, Ordering},
};

use crate::{
    abi::{self, Packed, Status},
    driver::Driver,
    policy::Policy,
};

/// The scratch buffer of a module.
#[repr(C, align(16))]
pub struct Scratch(UnsafeCell<[u8; abi::SCRATCH]>);

// SAFETY: a module has one thread.
unsafe impl Sync for Scratch {}

impl Default for Scratch {
    fn default() -> Self {
        Self::new()
    }
}

impl Scratch {
    /// Zeroed.
    pub const fn new() -> Self {
        Self(UnsafeCell::new([0; abi::SCRATCH]))
    }
}

/// A module's state.
pub struct Module<P> {
    state: UnsafeCell<Option<State<P>>>,
    rule: AtomicU32,
}

struct State<P> {
    driver: Driver<P>,
    reserved: Vec<u8>,
}

// SAFETY: a module has one thread.
unsafe impl<P> Sync for Module<P> {}

impl<P: Policy + Default> Default for Module<P> {
    fn default() -> Self {
        Self::new()
    }
}

impl<P: Policy + Default> Module<P> {
    /// Nothing in it yet; the policy is made on the first call.
    pub const fn new() -> Self {
        Self { state: UnsafeCell::new(None), rule: AtomicU32::new(abi::NO_RULE) }
    }

    #[allow(clippy::mut_from_ref)]
    fn state(&self) -> &mut State<P> {
        // SAFETY: one thread, and each export borrows the state once and does not re-enter.
        let state = unsafe { &mut *self.state.get() };
        state.get_or_insert_with(|| {
            set_panic_hook();
            State { driver: Driver::new(P::default()), reserved: Vec::new() }
        })
    }

    #[allow(clippy::mut_from_ref)]
    fn scratch<'a>(&self, scratch: &'a Scratch) -> &'a mut [u8] {
        // SAFETY: as above; the host touches the buffer only between calls.
        unsafe { &mut *scratch.0.get() }
    }

    /// `rulecast_rule`: the address of the cell that names the rule at work.
    pub fn rule_cell(&self) -> u32 {
        self.rule.as_ptr() as usize as u32
    }

    /// `rulecast_reserve`.
    pub fn reserve(&self, len: u32) -> u32 {
        let state = self.state();
        state.reserved = vec![0; len as usize];
        state.reserved.as_mut_ptr() as usize as u32
    }

    /// What was written into the reserved buffer; `None` for any other place.
    fn take(&self, ptr: u32, len: u32) -> Option<Vec<u8>> {
        let mut reserved = std::mem::take(&mut self.state().reserved);
        if reserved.as_ptr() as usize as u32 != ptr || reserved.len() < len as usize {
            return None;
        }
        reserved.truncate(len as usize);
        Some(reserved)
    }

    /// `rule_commit`.
    pub fn commit(&self, id: u32, ptr: u32, len: u32, scratch: &Scratch) -> i64 {
        let Some(spec) = self.take(ptr, len) else {
            return Packed::empty(Status::Malformed).pack();
        };
        self.rule.store(id, Ordering::Relaxed);
        let answer = self.state().driver.commit(id, &spec, self.scratch(scratch));
        self.rule.store(abi::NO_RULE, Ordering::Relaxed);
        answer
    }

    /// `rule_remove`.
    pub fn remove(&self, id: u32) {
        self.state().driver.remove(id);
    }

    /// `endpoints`.
    pub fn endpoints(&self, set: u32, ptr: u32, len: u32, scratch: &Scratch) -> i64 {
        let table = match len {
            0 => Some(Vec::new()),
            _ => self.take(ptr, len),
        };
        match table {
            Some(table) => self.state().driver.endpoints(set, table, self.scratch(scratch)),
            None => Packed::empty(Status::Malformed).pack(),
        }
    }

    /// `evaluate`.
    #[inline]
    pub fn evaluate(&self, len: u32, scratch: &Scratch) -> i64 {
        let mut at_work = |id| self.rule.store(id, Ordering::Relaxed);
        self.state().driver.evaluate(len, self.scratch(scratch), &mut at_work)
    }

    /// `explain`.
    pub fn explain(&self, len: u32, scratch: &Scratch) -> i64 {
        let mut at_work = |id| self.rule.store(id, Ordering::Relaxed);
        self.state().driver.explain(len, self.scratch(scratch), &mut at_work)
    }
}

#[cfg(target_arch = "wasm32")]
mod import {
    #[link(wasm_import_module = "rulecast")]
    unsafe extern "C" {
        pub(super) fn log(level: u32, ptr: u32, len: u32);
        pub(super) fn panic(ptr: u32, len: u32);
    }
}

/// Writes a line into the host's log, `level` 1 error to 4 debug. The host has a budget.
pub fn log(level: u32, text: &str) {
    #[cfg(target_arch = "wasm32")]
    // SAFETY: the host reads the text during the call.
    unsafe {
        import::log(level, text.as_ptr() as usize as u32, text.len() as u32);
    }
    #[cfg(not(target_arch = "wasm32"))]
    let _ = (level, text);
}

fn set_panic_hook() {
    #[cfg(target_arch = "wasm32")]
    std::panic::set_hook(Box::new(|info| {
        let text = info.to_string();
        // SAFETY: the host reads the text during the call.
        unsafe { import::panic(text.as_ptr() as usize as u32, text.len() as u32) };
    }));
}

/// Makes a crate (`crate-type = ["cdylib"]`) a module of the sandbox with this policy, which
/// must implement [`Policy`](crate::Policy) and `Default`. Natively it expands to nothing.
#[macro_export]
macro_rules! export {
    ($policy:ty) => {
        #[cfg(target_arch = "wasm32")]
        #[allow(missing_docs, unreachable_pub)]
        const _: () = {
            static MODULE: $crate::glue::Module<$policy> = $crate::glue::Module::new();
            static SCRATCH: $crate::glue::Scratch = $crate::glue::Scratch::new();

            #[unsafe(no_mangle)]
            extern "C" fn rulecast_abi() -> u32 {
                $crate::abi::VERSION
            }
            #[unsafe(no_mangle)]
            extern "C" fn rulecast_scratch() -> u32 {
                &raw const SCRATCH as usize as u32
            }
            #[unsafe(no_mangle)]
            extern "C" fn rulecast_rule() -> u32 {
                MODULE.rule_cell()
            }
            #[unsafe(no_mangle)]
            extern "C" fn rulecast_reserve(len: u32) -> u32 {
                MODULE.reserve(len)
            }
            #[unsafe(no_mangle)]
            extern "C" fn rule_commit(id: u32, ptr: u32, len: u32) -> i64 {
                MODULE.commit(id, ptr, len, &SCRATCH)
            }
            #[unsafe(no_mangle)]
            extern "C" fn rule_remove(id: u32) {
                MODULE.remove(id)
            }
            #[unsafe(no_mangle)]
            extern "C" fn endpoints(set: u32, ptr: u32, len: u32) -> i64 {
                MODULE.endpoints(set, ptr, len, &SCRATCH)
            }
            #[unsafe(no_mangle)]
            extern "C" fn evaluate(len: u32) -> i64 {
                MODULE.evaluate(len, &SCRATCH)
            }
            #[unsafe(no_mangle)]
            extern "C" fn explain(len: u32) -> i64 {
                MODULE.explain(len, &SCRATCH)
            }
        };
    };
}
