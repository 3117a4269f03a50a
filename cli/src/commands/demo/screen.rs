//! The terminal: what happened runs by, and below it stands how things are now.

use std::io::{self, IsTerminal as _};

use rustix::termios::tcgetwinsize;

/// Standard output, a terminal or not.
pub(super) struct Screen {
    terminal: bool,
    /// Lines at the end that are to be replaced.
    standing: usize,
}

impl Screen {
    pub(super) fn new() -> Self {
        Self { terminal: io::stdout().is_terminal(), standing: 0 }
    }

    /// Whether [`stand`](Self::stand) replaces what stood there.
    pub(super) fn is_live(&self) -> bool {
        self.terminal
    }

    /// Something that happened.
    pub(super) fn tell(&mut self, text: &str) {
        let clear = self.clear();
        crate::output::outln!("{clear}{text}");
    }

    /// How things are now.
    pub(super) fn stand(&mut self, text: &str) {
        let clear = self.clear();
        if !self.terminal {
            crate::output::outln!("{text}");
            return;
        }
        let (rows, columns) = size();
        let text = fit(text, rows, columns);
        self.standing = text.lines().count();
        crate::output::out!("{clear}{text}");
    }

    /// What takes away what stands.
    fn clear(&mut self) -> String {
        match std::mem::take(&mut self.standing) {
            0 => String::new(),
            // To the first of its lines, and from there all away.
            lines => format!("\x1b[{lines}F\x1b[J"),
        }
    }
}

/// Rows and columns; those of old where the terminal does not tell.
fn size() -> (usize, usize) {
    match tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_row > 1 && size.ws_col > 1 => (size.ws_row.into(), size.ws_col.into()),
        _ => (24, 80),
    }
}

/// What fits, so that no line wraps and none runs out at the top.
fn fit(text: &str, rows: usize, columns: usize) -> String {
    let mut out = String::new();
    for line in text.lines().take(rows - 1) {
        match line.char_indices().nth(columns) {
            Some(_) => {
                out.extend(line.chars().take(columns - 1));
                out.push('…');
            }
            None => out.push_str(line),
        }
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_stands_never_leaves_the_screen() {
        assert_eq!(super::fit("äbcd\n123\nx", 3, 3), "äb…\n123\n");
        assert_eq!(super::fit("äbcd\n123\nx", 24, 80), "äbcd\n123\nx\n");
    }
}
