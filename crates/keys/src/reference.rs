//! The reference: tables of all keys as text.

use std::fmt::Write;

use crate::key::{Default, Key, Only};
use crate::table::Table;
use crate::takes::{Takes, quoted};

/// Returns all keys as Markdown.
///
/// Each section has a heading, whose anchor is the section's name, and a table of its keys: accepted values,
/// default, whether the value affects the weights' bits (and may still change when a run is resumed), and
/// meaning. Keys that apply to one value of the key `apart` have a heading and a table of their own. The text
/// begins with links to all headings and ends with a newline.
#[must_use]
pub fn reference(table: &Table, apart: &str) -> String {
    let mut links = Vec::new();
    let mut text = String::new();
    for keys in table.keys().chunk_by(|a, b| (a.section, kind_of(a, apart)) == (b.section, kind_of(b, apart)))
    {
        let kind = kind_of(&keys[0], apart);
        let (title, anchor) = heading(keys[0].section, apart, kind);
        links.push(format!("[{title}](#{anchor})"));
        let level = if kind.is_some() { "###" } else { "##" };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "\n<a id=\"{anchor}\"></a>\n\n{level} {title}\n\n{HEADER}");
        text.extend(keys.iter().map(|key| line(key, kind.is_some())));
    }
    format!("{}\n{text}", links.join(" · "))
}

const HEADER: &str = "| key | takes | default | bits | meaning |\n| --- | --- | --- | --- | --- |";

/// Returns the value of the key `apart` that `key` requires, if it is exactly one.
fn kind_of(key: &Key, apart: &str) -> Option<&'static str> {
    match key.only {
        Some(Only { key, is: [kind], .. }) if key == apart => Some(*kind),
        _ => None,
    }
}

/// Returns the title of a table and its anchor.
fn heading(section: &str, apart: &str, kind: Option<&str>) -> (String, String) {
    let name = apart.rsplit('.').next().unwrap_or(apart);
    match kind {
        Some(kind) => (format!("`[{section}]` with `{name} = \"{kind}\"`"), format!("{section}-{kind}")),
        None => (format!("`[{section}]`"), section.replace('.', "-")),
    }
}

/// Returns a key's row of a table. In tables for one value of `apart`, the condition is left out because the
/// heading states it.
fn line(key: &Key, is_apart: bool) -> String {
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
    let or_in = |tables| format!(", also in a table of `{tables}`");
    let only = |only: Only| {
        let or_in = only.or_in.map_or(String::new(), or_in);
        format!(" Only with `{} = {}`{or_in}.", only.key, quoted(only.is))
    };
    let only = key.only.filter(|_| !is_apart).map_or(String::new(), only);
    let bits = match (key.decides_bits, key.may_change) {
        (false, _) => "",
        (true, false) => "yes",
        (true, true) => "yes, may change",
    };
    format!("| `{}` | {takes} | {default} | {bits} | {}{only} |\n", key.path, key.meaning())
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
