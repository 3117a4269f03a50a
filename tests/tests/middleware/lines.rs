//! What is logged on this thread, line by line.

use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
};

use serde_json::Value;
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::fmt::format::FmtSpan;

/// The log of a thread, while it is held.
pub(crate) struct Lines {
    bytes: Arc<Mutex<Vec<u8>>>,
    _guard: DefaultGuard,
}

struct Writer(Arc<Mutex<Vec<u8>>>);

impl io::Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Lines {
    /// Begins to listen.
    pub(crate) fn new() -> Self {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let writer = bytes.clone();
        let subscriber = tracing_subscriber::fmt()
            .json()
            .with_span_events(FmtSpan::CLOSE)
            .with_writer(move || Writer(writer.clone()))
            .finish();
        Self { bytes, _guard: tracing::subscriber::set_default(subscriber) }
    }

    /// What was written since the last time, of a target and those below it.
    pub(crate) fn take(&self, target: &str) -> Vec<Value> {
        let bytes = std::mem::take(&mut *self.bytes.lock().unwrap_or_else(PoisonError::into_inner));
        let lines = serde_json::Deserializer::from_slice(&bytes).into_iter::<Value>();
        let of = |line: &Value| line["target"].as_str().is_some_and(|t| t.starts_with(target));
        lines.map(|line| line.expect("a line")).filter(of).collect()
    }
}
