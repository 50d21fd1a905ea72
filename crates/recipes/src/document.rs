//! A configuration as text: keys with values and comments.

use std::fmt::Write;

use keys::Value;

/// Sections, in the order of the file.
const SECTIONS: [&str; 11] = [
    "model",
    "lora",
    "data",
    "preference",
    "train",
    "optim",
    "parallel",
    "precision",
    "memory",
    "telemetry",
    "checkpoint",
];
/// Column at which comments begin, unless the line is longer.
const COMMENTS: usize = 28;

/// A configuration to be written: a title, and keys with comments.
#[derive(Clone, Debug, PartialEq)]
pub struct Document {
    title: Vec<String>,
    entries: Vec<Entry>,
}

#[derive(Clone, Debug, PartialEq)]
struct Entry {
    key: &'static str,
    value: Value,
    comment: String,
}

impl Document {
    /// Creates an empty document. `title` has the lines of the comment at its top.
    #[must_use]
    pub fn new(title: Vec<String>) -> Self {
        Self { title, entries: Vec::new() }
    }

    /// Sets a key such as `train.steps`, replacing its earlier value.
    pub fn set(&mut self, key: &'static str, value: impl Into<Value>, comment: impl Into<String>) {
        let value = value.into();
        let comment = comment.into();
        match self.entries.iter_mut().find(|entry| entry.key == key) {
            Some(entry) => (entry.value, entry.comment) = (value, comment),
            None => self.entries.push(Entry { key, value, comment }),
        }
    }

    /// Removes a key.
    pub fn remove(&mut self, key: &str) {
        self.entries.retain(|entry| entry.key != key);
    }

    /// Returns the value of a key, if set.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.entries.iter().find(|entry| entry.key == key).map(|entry| &entry.value)
    }

    /// Formats a key with its value, as in `lora.rank = 16`; empty if it is not set.
    #[must_use]
    pub fn assignment(&self, key: &str) -> String {
        self.get(key).map_or_else(String::new, |value| format!("{key} = {}", literal(value)))
    }

    /// Returns the text of the file.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let mut text: String = self.title.iter().map(|line| format!("# {line}\n")).collect();
        for section in SECTIONS {
            let entries: Vec<_> =
                self.entries.iter().filter(|entry| section_of(entry.key) == section).collect();
            if entries.is_empty() {
                continue;
            }
            // Writing to a string does not fail.
            let _ = writeln!(text, "\n[{section}]");
            entries.iter().for_each(|entry| entry.write(&mut text));
        }
        text
    }
}

impl Entry {
    fn write(&self, text: &mut String) {
        let name = self.key.rsplit_once('.').map_or(self.key, |(_, name)| name);
        let line = format!("{name} = {}", literal(&self.value));
        let line = match self.comment.is_empty() {
            true => line,
            false => format!("{line:COMMENTS$} # {}", self.comment),
        };
        let _ = writeln!(text, "{line}");
    }
}

fn section_of(key: &str) -> &str {
    key.rsplit_once('.').map_or("", |(section, _)| section)
}

/// Numbers below this are written with an exponent.
const SMALL: f64 = 0.01;

/// Formats a value as TOML. Small numbers have an exponent: `2e-4`.
fn literal(value: &Value) -> String {
    match value {
        Value::Float(number) if *number != 0.0 && number.abs() < SMALL => format!("{number:e}"),
        other => other.to_string(),
    }
}
