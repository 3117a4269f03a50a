//! One ticker per process moves the epochs of all engines.

use std::{
    sync::{
        Mutex, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use wasmtime::{Engine, EngineWeak};

/// Distance of the ticks. Missed ticks are not made up for.
const TICK: Duration = Duration::from_millis(1);

static ENGINES: OnceLock<Mutex<Vec<EngineWeak>>> = OnceLock::new();
static TICKS: AtomicU64 = AtomicU64::new(0);

/// How often the ticker has ticked: while policies are loaded it must keep growing, else
/// deadlines do not hold.
pub fn ticks() -> u64 {
    TICKS.load(Ordering::Relaxed)
}

/// Moves this engine's epoch from now on.
pub(super) fn drive(engine: &Engine) -> std::io::Result<()> {
    static STARTED: Mutex<bool> = Mutex::new(false);
    let engines = ENGINES.get_or_init(Mutex::default);
    engines.lock().unwrap_or_else(PoisonError::into_inner).push(engine.weak());
    let mut started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
    if !*started {
        thread::Builder::new().name("rulecast-ticker".into()).stack_size(64 * 1024).spawn(
            move || {
                loop {
                    thread::sleep(TICK);
                    TICKS.fetch_add(1, Ordering::Relaxed);
                    engines.lock().unwrap_or_else(PoisonError::into_inner).retain(|engine| {
                        engine.upgrade().inspect(|engine| engine.increment_epoch()).is_some()
                    });
                }
            },
        )?;
        *started = true;
    }
    Ok(())
}

/// CPU time of the calling thread.
pub(super) fn thread_cpu() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}
