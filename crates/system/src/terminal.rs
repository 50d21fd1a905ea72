//! Standard output and standard error: failed writes are errors, and text cannot control a terminal.

use std::borrow::Cow;
use std::io::{ErrorKind, IsTerminal, Result, Write};

/// Writes `text` to standard output and flushes it. On a terminal, control characters are made visible.
///
/// # Errors
/// Standard output cannot be written. A closed reader gives an error of kind `BrokenPipe`.
pub fn print(text: &str) -> Result<()> {
    let shown = if std::io::stdout().is_terminal() { visible(text) } else { Cow::Borrowed(text) };
    write(&shown)
}

/// Like [`print()`], but a closed reader is not an error.
pub fn print_to_reader(text: &str) -> Result<()> {
    readers(print(text))
}

/// Like [`print_to_reader`], for the program's own text, which may contain colour codes.
pub fn print_as_is(text: &str) -> Result<()> {
    readers(write(text))
}

fn write(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

fn readers(written: Result<()>) -> Result<()> {
    match written {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        done => done,
    }
}

/// Writes a line to standard error, with control characters made visible.
pub fn say(line: &str) {
    // If standard error is closed, the failure cannot be reported.
    let _ = std::io::stderr().write_all(format!("{}\n", visible(line)).as_bytes());
}

/// Replaces every control character except tab and line feed by a visible one, and spells out invisible
/// characters that change the direction of text.
#[must_use]
pub fn visible(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_hidden) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        match character {
            // Unicode has a symbol for each of them.
            '\0'..='\x1f' if is_hidden(character) => {
                shown.extend(char::from_u32(0x2400 + u32::from(character)));
            }
            '\x7f' => shown.push('\u{2421}'),
            hidden if is_hidden(hidden) => shown.extend(hidden.escape_unicode()),
            other => shown.push(other),
        }
    }
    Cow::Owned(shown)
}

fn is_hidden(character: char) -> bool {
    match character {
        '\n' | '\t' => false,
        // Marks, embeddings, overrides and isolates of writing direction.
        '\u{200e}' | '\u{200f}' | '\u{061c}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => true,
        other => other.is_control(),
    }
}
