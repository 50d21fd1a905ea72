//! Standard output, standard error and exit status of the commands.

use std::io::IsTerminal;

use crate::error::CliError;
use run::JobError;
use serde::Serialize;
use system::terminal;

/// Prints `text` to standard output, ending with a line feed.
///
/// # Errors
/// Standard output cannot be written. A closed reader is not an error.
pub(crate) fn print(text: &str) -> Result<(), CliError> {
    terminal::print_to_reader(&format!("{}\n", text.trim_end())).map_err(unwritable)
}

/// Prints `value` as one line of JSON.
pub(crate) fn print_json(value: &impl Serialize) -> Result<(), CliError> {
    let text = serde_json::to_string(value);
    print(&text.map_err(|error| unwritable(error.into()))?)
}

/// Prints a line of progress to standard error; ignores that it may be closed.
pub(crate) fn note(line: &str) {
    terminal::say(line);
}

/// Returns the error of a failed write to standard output.
pub(crate) fn unwritable(source: std::io::Error) -> CliError {
    CliError::File { path: "standard output".into(), source }
}

/// Returns a command's exit status. Prints its error, unless another rank prints it.
pub(crate) fn exit_code(done: Result<(), CliError>) -> u8 {
    let Err(error) = done else { return 0 };
    if !error.is_reported() {
        note(&format!("plimsoll: {error}"));
    }
    error.exit_status()
}

/// Prints the parser's answer: help or an error. Returns the exit status.
pub(crate) fn answer(answer: &clap::Error) -> u8 {
    let text = answer.render();
    if answer.use_stderr() {
        // Uses colours if standard error is a terminal.
        let _ = answer.print();
        return 2;
    }
    let coloured = std::io::stdout().is_terminal();
    // Colours are control characters, so this text is printed unescaped.
    let text = if coloured { text.ansi().to_string() } else { text.to_string() };
    exit_code(terminal::print_as_is(&text).map_err(unwritable))
}

/// Rounds to `digits` decimals, for inexact values in JSON.
pub(crate) fn rounded(value: f64, digits: i32) -> f64 {
    let scale = 10_f64.powi(digits);
    (value * scale).round() / scale
}

/// Returns the plural ending: empty for 1, else `s`.
pub(crate) fn plural(number: usize) -> &'static str {
    if number == 1 { "" } else { "s" }
}
