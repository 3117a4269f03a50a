//! Vetting and compiling.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rulecast_api::{Code, Digest};
use rulecast_policy::abi;
use serde::Deserialize;
use wasmtime::{
    Caller, Config, Engine, ExternType, InstanceAllocationStrategy, InstancePre, Linker,
    PoolingAllocationConfig, ValType, WasmFeatures,
};

use super::{MAX_MEMORY, MAX_MODULE, MAX_STACK, MAX_TABLE, clock, instance::State};

/// Instances that the pool holds; more are made on demand.
const POOL: u32 = 64;

/// Exports that a module must have, with their parameters and results.
const EXPORTS: &[(&str, &[ValType], &[ValType])] = &[
    ("rulecast_abi", &[], &[ValType::I32]),
    ("rulecast_scratch", &[], &[ValType::I32]),
    ("rulecast_rule", &[], &[ValType::I32]),
    ("rulecast_reserve", &[ValType::I32], &[ValType::I32]),
    ("rule_commit", &[ValType::I32, ValType::I32, ValType::I32], &[ValType::I64]),
    ("rule_remove", &[ValType::I32], &[]),
    ("endpoints", &[ValType::I32, ValType::I32, ValType::I32], &[ValType::I64]),
    ("evaluate", &[ValType::I32], &[ValType::I64]),
    ("explain", &[ValType::I32], &[ValType::I64]),
];

/// Imports that a module may have.
const IMPORTS: &[(&str, &[ValType])] = &[
    ("log", &[ValType::I32, ValType::I32, ValType::I32]),
    ("panic", &[ValType::I32, ValType::I32]),
];

/// Why a module cannot be loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {message}", Code::ModuleInvalid)]
pub struct ModuleError {
    /// What is wrong and what would be right.
    pub message: String,
}

impl ModuleError {
    fn new(message: impl Into<String>) -> Self {
        Self { message: message.into() }
    }

    /// For `docs/errors.md`.
    pub const fn code(&self) -> Code {
        Code::ModuleInvalid
    }
}

/// What a module says of itself in the custom section `rulecast.manifest`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Manifest {
    /// ABI version, 1.
    pub abi: u32,
    /// One of [`abi::PHASES`].
    pub phase: String,
    /// Name of the policy.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Bytes of its scratch buffer, 4 KiB to 1 MiB.
    pub scratch: u32,
    /// The attributes that its rules may declare; `*` stands for any name or index.
    pub attributes: Vec<String>,
}

impl Manifest {
    /// Whether its rules may look at this attribute.
    pub(crate) fn declares(&self, name: &str) -> bool {
        self.attributes.iter().any(|pattern| match pattern.split_once('*') {
            Some((before, after)) => {
                name.len() >= before.len() + after.len()
                    && name.starts_with(before)
                    && name.ends_with(after)
            }
            None => pattern == name,
        })
    }
}

/// A vetted and compiled module. Clones share it.
#[derive(Clone)]
pub struct Module(Arc<Inner>);

struct Inner {
    digest: Digest,
    manifest: Manifest,
    bytes: Box<[u8]>,
    main: InstancePre<State>,
    /// For when the pool is exhausted; compiled then.
    spare: Mutex<Option<InstancePre<State>>>,
}

impl std::fmt::Debug for Module {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Module({} {})", self.0.manifest.name, self.0.digest.short())
    }
}

impl Module {
    /// Vets and compiles. Takes tens to hundreds of milliseconds: not for a call's way.
    /// Nothing of the module runs.
    pub fn new(bytes: &[u8]) -> Result<Self, ModuleError> {
        if bytes.len() > MAX_MODULE {
            let message = format!("{} bytes; at most {MAX_MODULE} are allowed", bytes.len());
            return Err(ModuleError::new(message));
        }
        let manifest = read_manifest(bytes)?;
        let main = prepare(main_engine()?, bytes)?;
        Ok(Self(Arc::new(Inner {
            digest: Digest::of(bytes),
            manifest,
            bytes: bytes.into(),
            main,
            spare: Mutex::new(None),
        })))
    }

    /// SHA-256 of its bytes.
    pub fn digest(&self) -> Digest {
        self.0.digest
    }

    /// What it says of itself.
    pub fn manifest(&self) -> &Manifest {
        &self.0.manifest
    }

    pub(super) fn main(&self) -> &InstancePre<State> {
        &self.0.main
    }

    pub(super) fn spare(&self) -> Result<InstancePre<State>, ModuleError> {
        let mut spare = self.0.spare.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(prepared) = &*spare {
            return Ok(prepared.clone());
        }
        let prepared = prepare(spare_engine()?, &self.0.bytes)?;
        *spare = Some(prepared.clone());
        Ok(prepared)
    }
}

fn main_engine() -> Result<&'static Engine, ModuleError> {
    static ENGINE: OnceLock<Result<Engine, ModuleError>> = OnceLock::new();
    let engine = ENGINE.get_or_init(|| match engine(true) {
        Ok(engine) => Ok(engine),
        // The pool's address space cannot be had.
        Err(_) => spare_engine().cloned(),
    });
    engine.as_ref().map_err(Clone::clone)
}

fn spare_engine() -> Result<&'static Engine, ModuleError> {
    static ENGINE: OnceLock<Result<Engine, ModuleError>> = OnceLock::new();
    ENGINE.get_or_init(|| engine(false)).as_ref().map_err(Clone::clone)
}

fn engine(pooling: bool) -> Result<Engine, ModuleError> {
    // With all that a 32-bit address can reach set aside, the module's code need not compare
    // each address with the memory's size: a quarter less time per decision. Address space
    // only: 258 GiB for the pool, once per process. What may be used is limited as before.
    let (reservation, guard) = match pooling {
        true => (4 << 30, 32 << 20),
        false => (MAX_MEMORY as u64, 64 << 10),
    };
    let mut config = Config::new();
    config
        .concurrency_support(false)
        .epoch_interruption(true)
        .max_wasm_stack(MAX_STACK)
        .memory_reservation(reservation)
        .memory_guard_size(guard)
        .memory_reservation_for_growth(0)
        .guard_before_linear_memory(false)
        .wasm_backtrace_max_frames(std::num::NonZeroUsize::new(16))
        .wasm_features(
            WasmFeatures::MULTI_VALUE
                | WasmFeatures::MEMORY64
                | WasmFeatures::MULTI_MEMORY
                | WasmFeatures::THREADS
                | WasmFeatures::RELAXED_SIMD
                | WasmFeatures::TAIL_CALL
                | WasmFeatures::GC
                | WasmFeatures::FUNCTION_REFERENCES
                | WasmFeatures::EXCEPTIONS
                | WasmFeatures::LEGACY_EXCEPTIONS,
            false,
        );
    if pooling {
        let mut pool = PoolingAllocationConfig::default();
        pool.total_core_instances(POOL)
            .total_memories(POOL)
            .total_tables(POOL)
            .max_core_instance_size(1024 * 1024)
            .max_memories_per_module(1)
            .max_tables_per_module(1)
            .max_memory_size(MAX_MEMORY)
            .table_elements(MAX_TABLE);
        config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
    }
    let engine = Engine::new(&config)
        .map_err(|e| ModuleError::new(format!("no engine can be made: {e:#}")))?;
    clock::drive(&engine)
        .map_err(|e| ModuleError::new(format!("the ticker cannot be started: {e}")))?;
    Ok(engine)
}

fn prepare(engine: &Engine, bytes: &[u8]) -> Result<InstancePre<State>, ModuleError> {
    // Only the binary format: `wasmtime` without its text parser refuses everything else.
    let module = wasmtime::Module::new(engine, bytes)
        .map_err(|e| ModuleError::new(format!("does not compile: {e:#}")))?;
    let same = |types: &mut dyn Iterator<Item = ValType>, wanted: &[ValType]| {
        let types: Vec<ValType> = types.collect();
        types.len() == wanted.len() && types.iter().zip(wanted).all(|(a, b)| ValType::eq(a, b))
    };
    for import in module.imports() {
        let (from, name) = (import.module(), import.name());
        let known = IMPORTS.iter().find(|(known, _)| from == abi::IMPORT_MODULE && *known == name);
        let fits = known.is_some_and(|(_, params)| match import.ty() {
            ExternType::Func(f) => same(&mut f.params(), params) && f.results().next().is_none(),
            _ => false,
        });
        if !fits {
            let message = format!(
                "imports {from}.{name}, which is not granted; granted: rulecast.log(i32, i32, \
                 i32), rulecast.panic(i32, i32)"
            );
            return Err(ModuleError::new(message));
        }
    }
    if !matches!(module.get_export("memory"), Some(ExternType::Memory(_))) {
        return Err(ModuleError::new("exports no memory"));
    }
    for (name, params, results) in EXPORTS {
        let fits = match module.get_export(name) {
            Some(ExternType::Func(f)) => {
                same(&mut f.params(), params) && same(&mut f.results(), results)
            }
            _ => false,
        };
        if !fits {
            let message = format!("exports no function {name} of the type that ABI v1 wants");
            return Err(ModuleError::new(message));
        }
    }
    let mut linker = Linker::new(engine);
    linker
        .func_wrap(
            abi::IMPORT_MODULE,
            "log",
            |caller: Caller<'_, State>, _: u32, at: u32, len: u32| {
                State::log(caller, at, len);
            },
        )
        .and_then(|linker| {
            linker.func_wrap(
                abi::IMPORT_MODULE,
                "panic",
                |caller: Caller<'_, State>, at: u32, len: u32| {
                    State::panic(caller, at, len);
                },
            )
        })
        .map_err(|e| ModuleError::new(format!("{e:#}")))?;
    linker.instantiate_pre(&module).map_err(|e| ModuleError::new(format!("{e:#}")))
}

/// Finds the manifest among a module's sections.
fn read_manifest(bytes: &[u8]) -> Result<Manifest, ModuleError> {
    let payload = custom_section(bytes, abi::MANIFEST_SECTION).ok_or_else(|| {
        ModuleError::new("is no WebAssembly module with a section rulecast.manifest")
    })?;
    if payload.len() > 64 * 1024 {
        return Err(ModuleError::new("the manifest is larger than 64 KiB"));
    }
    let manifest: Manifest = serde_json::from_slice(payload)
        .map_err(|e| ModuleError::new(format!("the manifest is malformed: {e}")))?;
    if manifest.abi != abi::VERSION {
        let message = format!("is made for ABI {}; this host has {}", manifest.abi, abi::VERSION);
        return Err(ModuleError::new(message));
    }
    if !abi::PHASES.contains(&manifest.phase.as_str()) {
        let message =
            format!("is for phase {:?}; this host has {}", manifest.phase, abi::PHASES.join(", "));
        return Err(ModuleError::new(message));
    }
    if !(4096..=1024 * 1024).contains(&manifest.scratch) {
        let message = format!("scratch of {} bytes; 4096 to 1048576 are allowed", manifest.scratch);
        return Err(ModuleError::new(message));
    }
    Ok(manifest)
}

fn custom_section<'a>(bytes: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let mut rest = bytes.strip_prefix(b"\0asm\x01\0\0\0")?;
    while let Some((&id, after)) = rest.split_first() {
        let (len, after) = leb(after)?;
        let (body, after) = after.split_at_checked(len)?;
        rest = after;
        if id == 0 {
            let (len, body) = leb(body)?;
            let (found, payload) = body.split_at_checked(len)?;
            if found == name.as_bytes() {
                return Some(payload);
            }
        }
    }
    None
}

fn leb(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let mut value = 0u64;
    for (i, &byte) in bytes.iter().take(5).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * i);
        if byte & 0x80 == 0 {
            return Some((usize::try_from(value).ok()?, bytes.get(i + 1..)?));
        }
    }
    None
}
