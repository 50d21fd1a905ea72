//! The reference: tables of keys as text.

use std::fmt::Write;

use crate::key::{Default, Only};
use crate::table::Table;
use crate::takes::{Takes, quoted};

/// Returns all keys as a Markdown table: accepted values, default, whether the value decides the bits of the
/// weights (and may still change when a run is continued), and meaning. Ends with a newline.
#[must_use]
pub fn reference(table: &Table) -> String {
    let mut text =
        String::from("| key | takes | default | bits | meaning |\n| --- | --- | --- | --- | --- |\n");
    for key in table.keys() {
        let default = match key.default {
            Default::Literal(literal) => format!("`{literal}`"),
            Default::Derived(words) => words.to_owned(),
        };
        let takes = match key.takes {
            Takes::Choice(names) => {
                names.iter().map(|name| format!("`\"{name}\"`")).collect::<Vec<_>>().join(", ")
            }
            _ => key.takes.to_string(),
        };
        let only = |only: Only| format!(" Only with `{} = {}`.", only.key, quoted(only.is));
        let only = key.only.map_or(String::new(), only);
        let bits = match (key.decides_bits, key.may_change) {
            (false, _) => "",
            (true, false) => "yes",
            (true, true) => "yes, may change",
        };
        let meaning = key.meaning();
        // Writing to a string cannot fail.
        let _ = writeln!(text, "| `{}` | {takes} | {default} | {bits} | {meaning}{only} |", key.path);
    }
    text
}

/// Returns all keys with their meanings and defaults, as a configuration file in which every key is commented
/// out.
#[must_use]
pub fn defaults(table: &Table) -> String {
    let mut text = String::new();
    let mut section = "";
    for key in table.keys() {
        if key.section != section {
            section = key.section;
            let gap = if text.is_empty() { "" } else { "\n" };
            let _ = writeln!(text, "{gap}[{section}]");
        }
        let only = |only: Only| format!(" (with {} = {})", only.key, quoted(only.is));
        let only = key.only.map_or(String::new(), only);
        let _ = writeln!(text, "# {}{only}", key.meaning());
        let _ = match key.default {
            Default::Literal(literal) => writeln!(text, "# {} = {literal}", key.name),
            Default::Derived(words) => writeln!(text, "# {}: {words}", key.name),
        };
    }
    text
}
