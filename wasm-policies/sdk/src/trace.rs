//! Why a policy decided as it did, line by line.

/// Hears why; the quiet one costs nothing. A policy decides in one way with either, so that an
/// explanation tells of the decision itself.
pub trait Trace: Default {
    /// Hears a line, which is made only when somebody listens.
    fn say(&mut self, line: impl FnOnce() -> String);

    /// What was said, in order.
    fn into_lines(self) -> Vec<String>;
}

/// Does not listen.
#[derive(Debug, Default)]
pub struct Quiet;

impl Trace for Quiet {
    #[inline]
    fn say(&mut self, _: impl FnOnce() -> String) {}

    #[inline]
    fn into_lines(self) -> Vec<String> {
        Vec::new()
    }
}

/// Keeps every line.
#[derive(Debug, Default)]
pub struct Spoken {
    lines: Vec<String>,
}

impl Trace for Spoken {
    fn say(&mut self, line: impl FnOnce() -> String) {
        self.lines.push(line());
    }

    fn into_lines(self) -> Vec<String> {
        self.lines
    }
}
