//! Entries: written values and their text in messages.

use system::quoted::shortened;

use crate::origin::Origin;
use crate::value::Value;

/// A value as written, with its origin.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) value: Value,
    /// The written text of the value, for messages.
    pub(crate) shown: String,
    pub(crate) origin: Origin,
}

/// Shortens a value for a message to one line of readable length.
pub(crate) fn shorten(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    shortened(&line).into_owned()
}
