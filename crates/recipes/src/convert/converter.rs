//! The state of a conversion: the arguments, and the configuration so far.

use config::{DataKind, RunConfig};
use keys::Value as Setting;
use serde_json::{Map, Value};

use super::arguments::{count, is_off, is_on, number, shown, texts};
use super::program::Program;
use crate::document::Document;
use crate::paths::Directories;

/// How a key of another trainer was handled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Converted to these assignments.
    Converted(String),
    /// Replaced by a command-line option.
    Option(String),
    /// Nothing corresponds to the key here, for this reason.
    NotNeeded(String),
    /// Left out, with the reason and a possible substitute.
    NoEquivalent(String),
}

/// A key of another trainer, and how it was handled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The key, with its section or index if any.
    pub key: String,
    /// The value, on one line.
    pub value: String,
    /// How the key was handled.
    pub outcome: Outcome,
}

/// Converts the value of one key.
pub(super) type Rule = fn(&mut Converter<'_>, &Value) -> Outcome;

/// The state of a conversion.
pub(super) struct Converter<'a> {
    pub(super) program: Program,
    pub(super) arguments: &'a Map<String, Value>,
    pub(super) directories: &'a Directories,
    pub(super) document: Document,
    pub(super) findings: Vec<Finding>,
    pub(super) notes: Vec<String>,
    /// Kind of the data, once known.
    pub(super) kind: Option<DataKind>,
    /// Whether the run trains adapters.
    pub(super) has_adapters: bool,
    /// Keys set to another trainer's values unchanged, paired with that trainer's key.
    pub(super) as_they_stand: Vec<(String, &'static str)>,
}

impl Converter<'_> {
    /// Returns the value of an argument, unless it is absent or means "off".
    pub(super) fn argument(&self, key: &str) -> Option<&Value> {
        self.arguments.get(key).filter(|value| !is_off(value))
    }

    /// Returns the count in the first of these arguments that is present.
    pub(super) fn count_of(&self, keys: &[&str]) -> Option<u64> {
        keys.iter().find_map(|key| count(self.argument(key)?))
    }

    /// Returns the run's number of steps, if specified.
    pub(super) fn steps(&self) -> Option<u64> {
        self.count_of(&["max_steps"]).filter(|steps| *steps > 0)
    }

    pub(super) fn add(&mut self, key: impl Into<String>, value: &Value, outcome: Outcome) {
        self.findings.push(Finding { key: key.into(), value: shown(value), outcome });
    }

    /// Sets a key, and returns the outcome.
    pub(super) fn set(&mut self, key: &'static str, value: impl Into<Setting>, comment: &str) -> Outcome {
        self.document.set(key, value, comment);
        Outcome::Converted(self.document.assignment(key))
    }

    /// Sets a key to a number.
    pub(super) fn set_number(&mut self, key: &'static str, value: &Value, comment: &str) -> Outcome {
        match number(value) {
            Some(number) => self.set(key, number, comment),
            None => not_a("number", value),
        }
    }

    /// Sets a key to a count.
    pub(super) fn set_count(&mut self, key: &'static str, value: &Value, comment: &str) -> Outcome {
        match count(value) {
            Some(count) => self.set(key, count, comment),
            None => not_a("whole number", value),
        }
    }

    /// Converts a key without a rule, according to the table of other trainers' keys.
    pub(super) fn by_table(&mut self, key: &str, value: &Value) -> Outcome {
        const NEEDLESS: &str = "leave it out: ";
        const NOT_BUILT: &str = "not built";
        const RUN_DIR: &str = "use the option --run-dir";
        match config::foreign_key(key) {
            None => Outcome::NoEquivalent("it is not known here".to_owned()),
            Some(RUN_DIR) => Outcome::Option(format!("--run-dir {}", shown(value))),
            Some(sentence) if sentence.starts_with(NEEDLESS) => {
                let reason = sentence.trim_start_matches(NEEDLESS).to_owned();
                if reason.contains(NOT_BUILT) {
                    Outcome::NoEquivalent(reason)
                } else {
                    Outcome::NotNeeded(reason)
                }
            }
            Some(sentence) if sentence.contains(' ') => Outcome::NoEquivalent(sentence.to_owned()),
            Some(section) if section.starts_with('[') => {
                Outcome::NoEquivalent(format!("its settings belong in {section}"))
            }
            Some(here) => self.as_it_stands(key, here, value),
        }
    }

    fn as_it_stands(&mut self, key: &str, here: &'static str, value: &Value) -> Outcome {
        let setting: Setting = match (value, number(value)) {
            (Value::Bool(flag), _) => (*flag).into(),
            (Value::Number(whole), _) if whole.is_i64() || whole.is_u64() => {
                Setting::Integer(whole.as_i128().unwrap_or_default())
            }
            (_, Some(number)) => number.into(),
            (Value::String(text), None) => text.as_str().into(),
            (Value::Array(_), None) => match texts(value) {
                Some(texts) => texts.as_slice().into(),
                None => return Outcome::NoEquivalent(format!("{here} takes no such list")),
            },
            _ => return Outcome::NoEquivalent(format!("{here} takes no such value")),
        };
        if self.document.get(here).is_some() {
            return Outcome::NoEquivalent(format!("another key has set {here} already"));
        }
        self.as_they_stand.push((key.to_owned(), here));
        self.set(here, setting, "")
    }

    /// Checks the configuration. Removes keys whose unchanged values make it invalid. Returns the remaining
    /// error.
    pub(super) fn check(&mut self) -> Option<config::ConfigError> {
        for (key, here) in std::mem::take(&mut self.as_they_stand) {
            let Err(error) = parse(&self.document, self.directories) else { return None };
            let mut without = self.document.clone();
            without.remove(here);
            let is_better = match parse(&without, self.directories) {
                Ok(()) => true,
                Err(other) => other.to_string() != error.to_string(),
            };
            if let (true, Some(finding)) =
                (is_better, self.findings.iter_mut().find(|finding| finding.key == key))
            {
                finding.outcome = Outcome::NoEquivalent(error.to_string());
                self.document = without;
            }
        }
        parse(&self.document, self.directories).err()
    }
}

/// Parses a configuration. If its model folder does not exist, a model of the usual family is substituted.
fn parse(document: &Document, directories: &Directories) -> Result<(), config::ConfigError> {
    let directory = directories.of_configuration();
    let mut document = document.clone();
    let is_absent = match document.get("model.from") {
        Some(Setting::Text(from)) => !directory.join(from).is_dir(),
        _ => false,
    };
    if is_absent {
        document.remove("model.from");
        document.set("model.kind", "llama", "");
    }
    RunConfig::parse_made(&document.to_toml(), "the new configuration", directory, &[]).map(drop)
}

/// Returns the outcome for a value of the wrong type.
pub(super) fn not_a(what: &str, value: &Value) -> Outcome {
    Outcome::NoEquivalent(format!("{} is not a {what}", shown(value)))
}

/// Returns the outcome for a key that changes nothing here.
pub(super) fn not_needed(reason: &str) -> Outcome {
    Outcome::NotNeeded(reason.to_owned())
}

/// Returns the outcome for a key that is left out.
pub(super) fn none(reason: impl Into<String>) -> Outcome {
    Outcome::NoEquivalent(reason.into())
}

/// Converts a switch: the result of `on` if the value means "on", else an unknown value.
pub(super) fn switch(value: &Value, on: impl FnOnce() -> Outcome) -> Outcome {
    if is_on(value) { on() } else { none(format!("{} is not known here", shown(value))) }
}
