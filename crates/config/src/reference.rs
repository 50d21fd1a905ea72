//! The table of keys as text for people.

use crate::key::{Default, Takes};
use crate::keys::KEYS;
use crate::unbuilt::UNBUILT;
use std::fmt::Write;

/// Every key as a Markdown table: what it takes, its default, what it means. Ends with a newline.
///
/// ```
/// let table = config::reference();
/// assert!(table.contains("| `train.steps` | an integer from 1 to "));
/// ```
#[must_use]
pub fn reference() -> String {
    let mut text = String::from("| key | takes | default | meaning |\n| --- | --- | --- | --- |\n");
    for key in KEYS {
        let default = match key.default {
            Default::Literal(literal) => format!("`{literal}`"),
            Default::Derived(words) => words.to_owned(),
        };
        let takes = match key.takes {
            Takes::Choice(names) => {
                names.iter().map(|name| format!("`\"{name}\"`")).collect::<Vec<_>>().join(", ")
            }
            // Where the other values are not built yet, the default is all there is.
            _ if UNBUILT.iter().any(|unbuilt| unbuilt.key.path == key.path) => {
                format!("only {default} so far")
            }
            _ => key.takes.to_string(),
        };
        let only = key
            .only
            .map_or(String::new(), |(kind, name)| format!(" Only with `{} = \"{name}\"`.", kind.path));
        // Writing to a string does not fail.
        let _ = writeln!(text, "| `{}` | {takes} | {default} | {}{only} |", key.path, key.meaning);
    }
    text
}

/// Every key with its meaning and default as a configuration file in which all of them are commented out.
#[must_use]
pub fn defaults() -> String {
    let mut text = String::new();
    let mut section = "";
    for key in KEYS {
        if key.section != section {
            section = key.section;
            let gap = if text.is_empty() { "" } else { "\n" };
            let _ = writeln!(text, "{gap}[{section}]");
        }
        let only =
            key.only.map_or(String::new(), |(kind, name)| format!(" (with {} = \"{name}\")", kind.name));
        let _ = writeln!(text, "# {}{only}", key.meaning);
        let _ = match key.default {
            Default::Literal(literal) => writeln!(text, "# {} = {literal}", key.name),
            Default::Derived(words) => writeln!(text, "# {}: {words}", key.name),
        };
    }
    text
}
