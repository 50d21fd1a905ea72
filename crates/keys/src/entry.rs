//! A value that someone wrote, and how messages show it.

use crate::origin::Origin;
use crate::value::Value;

/// A value that someone wrote.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) value: Value,
    /// The value as it is written, for messages.
    pub(crate) shown: String,
    pub(crate) origin: Origin,
}

/// A value for a message: on one line and of a readable length.
pub(crate) fn shorten(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}
