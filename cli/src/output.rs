//! Standard output, whose reader may leave.

use std::{
    fmt,
    io::{self, Write as _},
    process,
};

/// As a shell shows a process that SIGPIPE ended.
const PIPE_CLOSED: i32 = 128 + 13;

/// Writes to standard output. When nobody reads it any more (`… | head`) the process
/// ends without a word, as other tools do; Rust's own `print!` would panic.
pub(crate) fn write(text: fmt::Arguments<'_>) {
    let mut out = io::stdout().lock();
    match out.write_fmt(text).and_then(|()| out.flush()) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => process::exit(PIPE_CLOSED),
        Err(error) => {
            // Standard error may be gone as well.
            let _ = writeln!(io::stderr(), "error: cannot write to standard output: {error}");
            process::exit(1)
        }
    }
}

/// Text from elsewhere, such as a file's name, fit for one line of a terminal: control
/// characters are written as escapes.
pub(crate) fn line(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
}

/// As `print!`, by [`write`].
macro_rules! out {
    ($($text:tt)*) => { $crate::output::write(format_args!($($text)*)) };
}

/// As `println!`, by [`write`].
macro_rules! outln {
    ($($text:tt)*) => { $crate::output::write(format_args!("{}\n", format_args!($($text)*))) };
}

pub(crate) use {out, outln};

#[cfg(test)]
mod tests {
    #[test]
    fn a_line_stays_one_and_harmless() {
        assert_eq!(super::line("a\nb\u{1b}[31m ü"), "a\\nb\\u{1b}[31m ü");
    }
}
