//! One instance of a module, in one thread.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use rulecast_policy::abi;
use wasmtime::{
    Caller, Extern, Memory, PoolConcurrencyLimitError, ResourceLimiter, Store, Trap, TypedFunc,
    UpdateDeadline,
};

use super::{
    Fault, FaultKind, MAX_INSTANCES, MAX_MEMORY, MAX_TABLE,
    clock::thread_cpu,
    module::{Module, ModuleError},
};

/// CPU time of one entry. The clock is first looked at after up to one tick and then at every
/// tick, so that five milliseconds are not exceeded.
const CALL: Duration = Duration::from_millis(3);
/// The same for taking a table of endpoints, which grows with it.
const TABLE: Duration = Duration::from_millis(50);

/// Lines that a module may log per entry.
const LOG_LINES: u32 = 16;
/// Bytes of a line, or of a panic message.
const LINE: usize = 1024;

static LIVE: AtomicUsize = AtomicUsize::new(0);

/// What the host keeps with an instance.
#[derive(Debug)]
pub(super) struct State {
    /// The thread's CPU time when the first tick of this entry was seen.
    base: Option<Duration>,
    budget: Duration,
    /// Whether memory or table was refused during this entry.
    refused: bool,
    lines: u32,
    panic: Option<String>,
}

impl State {
    fn new() -> Self {
        Self { base: None, budget: CALL, refused: false, lines: LOG_LINES, panic: None }
    }

    pub(super) fn log(mut caller: Caller<'_, Self>, at: u32, len: u32) {
        if caller.data().lines == 0 {
            return;
        }
        caller.data_mut().lines -= 1;
        let text = read_text(&mut caller, at, len);
        tracing::debug!(target: "rulecast::policy", "{text}");
    }

    pub(super) fn panic(mut caller: Caller<'_, Self>, at: u32, len: u32) {
        let text = read_text(&mut caller, at, len);
        caller.data_mut().panic = Some(text);
    }
}

/// A text of the guest: shortened, without control characters.
fn read_text(caller: &mut Caller<'_, State>, at: u32, len: u32) -> String {
    let Some(Extern::Memory(memory)) = caller.get_export("memory") else { return String::new() };
    let start = at as usize;
    let end = start.saturating_add((len as usize).min(LINE));
    clean(memory.data(&caller).get(start..end).unwrap_or_default())
}

/// Text of a guest for people: no control characters.
pub(super) fn clean(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).replace(char::is_control, " ")
}

impl ResourceLimiter for State {
    fn memory_growing(
        &mut self,
        _: usize,
        desired: usize,
        _: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let fits = desired <= MAX_MEMORY;
        self.refused |= !fits;
        Ok(fits)
    }

    fn memory_grow_failed(&mut self, _: wasmtime::Error) -> wasmtime::Result<()> {
        self.refused = true;
        Ok(())
    }

    fn table_growing(
        &mut self,
        _: usize,
        desired: usize,
        _: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let fits = desired <= MAX_TABLE;
        self.refused |= !fits;
        Ok(fits)
    }

    fn table_grow_failed(&mut self, _: wasmtime::Error) -> wasmtime::Result<()> {
        self.refused = true;
        Ok(())
    }

    fn instances(&self) -> usize {
        1
    }

    fn tables(&self) -> usize {
        1
    }

    fn memories(&self) -> usize {
        1
    }
}

/// Counts a live instance for as long as it lives.
struct Live;

impl Live {
    fn new() -> Result<Self, Fault> {
        if LIVE.fetch_add(1, Ordering::Relaxed) >= MAX_INSTANCES {
            LIVE.fetch_sub(1, Ordering::Relaxed);
            let message = format!("{MAX_INSTANCES} instances are alive already");
            return Err(Fault::new(FaultKind::Unavailable, message));
        }
        Ok(Self)
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        LIVE.fetch_sub(1, Ordering::Relaxed);
    }
}

pub(crate) struct Instance {
    store: Store<State>,
    memory: Memory,
    scratch: (usize, usize),
    rule: usize,
    reserve: TypedFunc<u32, u32>,
    commit: TypedFunc<(u32, u32, u32), i64>,
    remove: TypedFunc<u32, ()>,
    endpoints: TypedFunc<(u32, u32, u32), i64>,
    evaluate: TypedFunc<u32, i64>,
    explain: TypedFunc<u32, i64>,
    _live: Live,
}

impl Instance {
    pub(super) fn new(module: &Module) -> Result<Self, Fault> {
        let live = Live::new()?;
        match Self::make(module.main(), module, live) {
            Ok(made) => made,
            // The pool is exhausted: one on demand.
            Err(live) => {
                let spare = module.spare().map_err(unavailable)?;
                Self::make(&spare, module, live).unwrap_or_else(|_| {
                    Err(Fault::new(FaultKind::Unavailable, "no instance can be made"))
                })
            }
        }
    }

    /// `Err` gives the place back when the pool is exhausted.
    fn make(
        prepared: &wasmtime::InstancePre<State>,
        module: &Module,
        live: Live,
    ) -> Result<Result<Self, Fault>, Live> {
        let mut store = Store::new(prepared.module().engine(), State::new());
        store.limiter(|state| state);
        store.epoch_deadline_callback(|mut context| {
            let now = thread_cpu();
            let state = context.data_mut();
            let base = *state.base.get_or_insert(now);
            Ok(match now.saturating_sub(base) >= state.budget {
                true => UpdateDeadline::Interrupt,
                // Either young, or descheduled: no fault of the policy.
                false => UpdateDeadline::Continue(1),
            })
        });
        store.set_epoch_deadline(1);
        let instance = match prepared.instantiate(&mut store) {
            Ok(instance) => instance,
            Err(error) if error.is::<PoolConcurrencyLimitError>() => return Err(live),
            Err(error) => return Ok(Err(classify(&error, store.data_mut()))),
        };
        Ok(Self::connect(store, instance, module, live))
    }

    fn connect(
        mut store: Store<State>,
        instance: wasmtime::Instance,
        module: &Module,
        live: Live,
    ) -> Result<Self, Fault> {
        let missing = |_| Fault::new(FaultKind::BadOutput, "an export is missing");
        let memory = instance
            .get_memory(&mut store, "memory")
            .ok_or_else(|| Fault::new(FaultKind::BadOutput, "the memory is missing"))?;
        let mut ask = |name: &str| -> Result<u32, Fault> {
            let ask = instance.get_typed_func::<(), u32>(&mut store, name).map_err(missing)?;
            enter(&mut store, CALL);
            ask.call(&mut store, ()).map_err(|e| classify(&e, store.data_mut()))
        };
        let version = ask("rulecast_abi")?;
        if version != abi::VERSION {
            let message = format!("speaks ABI {version}, not {}", abi::VERSION);
            return Err(Fault::new(FaultKind::BadOutput, message));
        }
        let start = ask("rulecast_scratch")? as usize;
        let rule = ask("rulecast_rule")? as usize;
        let end = start.saturating_add(module.manifest().scratch as usize);
        let size = memory.data_size(&store);
        if end > size || rule.saturating_add(4) > size {
            let message = "its scratch buffer lies outside of its memory";
            return Err(Fault::new(FaultKind::BadOutput, message));
        }
        let reserve = instance.get_typed_func(&mut store, "rulecast_reserve").map_err(missing)?;
        let commit = instance.get_typed_func(&mut store, "rule_commit").map_err(missing)?;
        let remove = instance.get_typed_func(&mut store, "rule_remove").map_err(missing)?;
        let endpoints = instance.get_typed_func(&mut store, "endpoints").map_err(missing)?;
        let evaluate = instance.get_typed_func(&mut store, "evaluate").map_err(missing)?;
        let explain = instance.get_typed_func(&mut store, "explain").map_err(missing)?;
        Ok(Self {
            store,
            memory,
            scratch: (start, end),
            rule,
            reserve,
            commit,
            remove,
            endpoints,
            evaluate,
            explain,
            _live: live,
        })
    }

    /// A memory never shrinks, so the buffer found inside stays inside.
    #[inline]
    pub(super) fn scratch(&mut self) -> &mut [u8] {
        let (start, end) = self.scratch;
        self.memory.data_mut(&mut self.store).get_mut(start..end).unwrap_or_default()
    }

    #[inline]
    pub(super) fn scratch_ref(&self) -> &[u8] {
        let (start, end) = self.scratch;
        self.memory.data(&self.store).get(start..end).unwrap_or_default()
    }

    #[inline]
    pub(super) fn memory_size(&self) -> usize {
        self.memory.data_size(&self.store)
    }

    fn fault(&mut self, error: &wasmtime::Error) -> Fault {
        let mut fault = classify(error, self.store.data_mut());
        let cell = self.memory.data(&self.store).get(self.rule..self.rule + 4);
        let rule = cell.and_then(|c| c.try_into().ok()).map(u32::from_le_bytes);
        fault.rule = rule.filter(|&r| r != abi::NO_RULE);
        fault
    }

    fn give(&mut self, bytes: &[u8], budget: Duration) -> Result<u32, Fault> {
        let len = u32::try_from(bytes.len())
            .map_err(|_| Fault::new(FaultKind::Oversize, "above 4 GiB"))?;
        enter(&mut self.store, budget);
        let at = self.reserve.call(&mut self.store, len).map_err(|e| self.fault(&e))?;
        let start = at as usize;
        let place = self
            .memory
            .data_mut(&mut self.store)
            .get_mut(start..start.saturating_add(bytes.len()))
            .ok_or_else(|| Fault::new(FaultKind::BadOutput, "reserved outside of its memory"))?;
        place.copy_from_slice(bytes);
        Ok(at)
    }

    pub(super) fn commit(&mut self, id: u32, spec: &[u8]) -> Result<i64, Fault> {
        let at = self.give(spec, CALL)?;
        enter(&mut self.store, CALL);
        let arguments = (id, at, spec.len() as u32);
        self.commit.call(&mut self.store, arguments).map_err(|e| self.fault(&e))
    }

    pub(super) fn remove(&mut self, id: u32) -> Result<(), Fault> {
        enter(&mut self.store, CALL);
        self.remove.call(&mut self.store, id).map_err(|e| self.fault(&e))
    }

    pub(super) fn endpoints(&mut self, set: u32, table: &[u8]) -> Result<i64, Fault> {
        let at = if table.is_empty() { 0 } else { self.give(table, TABLE)? };
        enter(&mut self.store, TABLE);
        let arguments = (set, at, table.len() as u32);
        self.endpoints.call(&mut self.store, arguments).map_err(|e| self.fault(&e))
    }

    #[inline]
    pub(super) fn run(&mut self, len: u32, explain: bool) -> Result<i64, Fault> {
        enter(&mut self.store, CALL);
        let call = if explain { &self.explain } else { &self.evaluate };
        match call.call(&mut self.store, len) {
            Ok(packed) => Ok(packed),
            Err(error) => Err(self.fault(&error)),
        }
    }
}

#[inline]
fn enter(store: &mut Store<State>, budget: Duration) {
    let state = store.data_mut();
    state.base = None;
    state.budget = budget;
    state.refused = false;
    state.lines = LOG_LINES;
    store.set_epoch_deadline(1);
}

fn unavailable(error: ModuleError) -> Fault {
    Fault::new(FaultKind::Unavailable, error.message)
}

fn classify(error: &wasmtime::Error, state: &mut State) -> Fault {
    let trap = error.downcast_ref::<Trap>();
    let panic = state.panic.take();
    let kind = match trap {
        Some(Trap::Interrupt) => FaultKind::Timeout,
        Some(Trap::StackOverflow) => FaultKind::Stack,
        _ if state.refused => FaultKind::Memory,
        _ => FaultKind::Trap,
    };
    let message = match (kind, panic, trap) {
        (FaultKind::Timeout, ..) => "ran past its deadline of 5 ms".to_owned(),
        (FaultKind::Memory, ..) => {
            format!("wanted more than {MAX_MEMORY} bytes or {MAX_TABLE} table elements")
        }
        (_, Some(panic), _) => panic,
        (_, None, Some(trap)) => trap.to_string(),
        (_, None, None) => clean(error.to_string().as_bytes()),
    };
    Fault::new(kind, message)
}
