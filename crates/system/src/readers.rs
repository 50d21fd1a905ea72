//! Keys of files written by other programs: whether a reader knows, ignores or refuses them.
//!
//! The reader of such a file lists its keys in a [`Reader`]. The list determines how each key is treated,
//! produces the sentence of a refusal, and generates the tables of `docs/readers.md`.

use std::fmt::Write;

use serde_json::{Map, Value};

use crate::quoted::shortened;

/// The keys of one kind of file or object.
#[derive(Debug)]
pub struct Reader {
    /// The kind, as a heading in the documentation: "A message of a conversation".
    pub of: &'static str,
    /// The keys, in the order of the documentation.
    pub keys: &'static [FileKey],
    /// Readers whose keys are also accepted.
    pub shared: &'static [&'static Reader],
    /// Treatment of unlisted keys.
    pub unlisted: Unlisted,
}

/// Keys that a reader treats in the same way.
#[derive(Debug)]
pub struct FileKey {
    names: &'static [&'static str],
    treatment: Treatment,
    /// Meaning of a known key, the reason why a key is ignored, or advice about a refused key.
    note: &'static str,
}

/// Treatment of a listed key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Treatment {
    /// The key is read.
    Known,
    /// The key has no effect here.
    Ignored,
    /// The key would change the result and is not supported. It may be absent, null, or have one of these
    /// values: JSON, or plain text for files that are not JSON.
    Refused(&'static [&'static str]),
}

/// Treatment of unlisted keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unlisted {
    /// Ignored, and counted in one line of the log.
    Counted,
    /// Refused by name.
    Refused,
    /// Refused by name, unless the value means "nothing": null, false, 0, or an empty string, list or object.
    RefusedIfSet,
    /// Another treatment, described by this sentence in the documentation.
    Other(&'static str),
}

impl FileKey {
    /// Returns keys that are read.
    #[must_use]
    pub const fn known(names: &'static [&'static str], meaning: &'static str) -> Self {
        Self { names, treatment: Treatment::Known, note: meaning }
    }

    /// Returns keys that are ignored, for a reason.
    #[must_use]
    pub const fn ignored(names: &'static [&'static str], reason: &'static str) -> Self {
        Self { names, treatment: Treatment::Ignored, note: reason }
    }

    /// Returns keys that are refused unless their value is null or in `harmless`. `advice` tells the user
    /// what to do.
    #[must_use]
    pub const fn refused(
        names: &'static [&'static str],
        harmless: &'static [&'static str],
        advice: &'static str,
    ) -> Self {
        Self { names, treatment: Treatment::Refused(harmless), note: advice }
    }

    /// Returns the names of the keys.
    #[must_use]
    pub fn names(&self) -> &'static [&'static str] {
        self.names
    }

    /// Returns the treatment of the keys.
    #[must_use]
    pub fn treatment(&self) -> Treatment {
        self.treatment
    }

    /// Returns the sentence that refuses `value` for the key `name`; `None` if it is accepted.
    fn refusal(&self, name: &str, value: &Value) -> Option<String> {
        match self.treatment {
            Treatment::Refused(harmless) if !value.is_null() && !is_among(value, harmless) => Some(format!(
                "\"{name}\" = {} is not supported: {}",
                shortened(&value.to_string()),
                self.note
            )),
            _ => None,
        }
    }
}

impl Reader {
    /// Returns the listed key with this name.
    #[must_use]
    pub fn key(&self, name: &str) -> Option<&'static FileKey> {
        let own = self.keys.iter().find(|key| key.names.contains(&name));
        own.or_else(|| self.shared.iter().find_map(|reader| reader.key(name)))
    }

    /// Checks the keys of an object. Returns the unlisted ones.
    ///
    /// # Errors
    /// A key is refused; the error is a sentence without the file's name.
    pub fn check<'a>(&self, object: &'a Map<String, Value>) -> Result<Vec<&'a str>, String> {
        let mut unlisted = Vec::new();
        for (name, value) in object {
            match self.key(name) {
                Some(key) => key.refusal(name, value).map_or(Ok(()), Err)?,
                None if self.unlisted == Unlisted::Refused => return Err(self.unknown(name)),
                None if self.unlisted == Unlisted::RefusedIfSet && is_set(value) => {
                    let value = value.to_string();
                    return Err(format!("\"{}\" = {} is not known", shortened(name), shortened(&value)));
                }
                None => unlisted.push(name.as_str()),
            }
        }
        Ok(unlisted)
    }

    /// Checks a key of a file that is not JSON. Returns whether it is listed.
    ///
    /// # Errors
    /// The key is refused; the error is a sentence without the file's name.
    pub fn check_text(&self, name: &str, value: &str) -> Result<bool, String> {
        match self.key(name) {
            Some(key) => match key.treatment {
                Treatment::Refused(harmless) if !harmless.contains(&value) => {
                    Err(format!("{name} = {} is not supported: {}", shortened(value), key.note))
                }
                _ => Ok(true),
            },
            None if self.unlisted == Unlisted::Refused => Err(self.unknown(name)),
            None => Ok(false),
        }
    }

    /// Returns the sentence that refuses an unlisted key.
    fn unknown(&self, name: &str) -> String {
        let known = self.keys.iter().filter(|key| key.treatment == Treatment::Known);
        let names: Vec<&str> = known.flat_map(|key| key.names).copied().collect();
        format!("\"{}\" is not known; known: {}", shortened(name), names.join(", "))
    }

    /// Returns the documentation section: a heading, a table of the keys, and a sentence about unlisted keys.
    #[must_use]
    pub fn section(&self) -> String {
        let mut text = format!("### {}\n\n| key | treatment | |\n| --- | --- | --- |\n", self.of);
        for FileKey { names, treatment, note } in self.keys {
            let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
            let treatment = match treatment {
                Treatment::Known => "read".to_owned(),
                Treatment::Ignored => "ignored".to_owned(),
                Treatment::Refused([]) => "refused".to_owned(),
                Treatment::Refused(harmless) => {
                    let values: Vec<String> = harmless.iter().map(|value| format!("`{value}`")).collect();
                    format!("refused, but for {}", values.join(", "))
                }
            };
            // Writing to a string does not fail.
            let _ = writeln!(text, "| {} | {treatment} | {note} |", names.join(", "));
        }
        let others = match self.unlisted {
            Unlisted::Counted => "Other keys are left out, and counted in one line of the log.",
            Unlisted::Refused => "Other keys are refused by name.",
            Unlisted::RefusedIfSet => {
                "Other keys are refused by name, unless they are null, false, 0 or empty."
            }
            Unlisted::Other(sentence) => sentence,
        };
        let shared = self.shared.iter().map(|reader| format!("*{}*", reader.of)).collect::<Vec<_>>();
        let shared = match shared.is_empty() {
            true => String::new(),
            false => format!("The keys of {} are listed there. ", shared.join(" and ")),
        };
        let _ = writeln!(text, "\n{shared}{others}");
        text
    }
}

/// Returns whether a value means anything but "nothing".
fn is_set(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(flag) => *flag,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(values) => !values.is_empty(),
        Value::Object(values) => !values.is_empty(),
    }
}

/// Returns whether `value` equals one of `texts`, which are JSON; numbers are compared by value.
fn is_among(value: &Value, texts: &[&str]) -> bool {
    let equals = |text: &&str| match serde_json::from_str::<Value>(text) {
        Ok(Value::Number(number)) => value.as_f64().is_some_and(|value| number.as_f64() == Some(value)),
        Ok(other) => other == *value,
        Err(_) => false,
    };
    texts.iter().any(equals)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const READER: Reader = Reader {
        of: "A test",
        keys: &[
            FileKey::known(&["r", "rank"], "the rank"),
            FileKey::ignored(&["note"], "it is a comment"),
            FileKey::refused(&["scale"], &["1", "\"none\"", "[]"], "write 1"),
        ],
        shared: &[&COMMON],
        unlisted: Unlisted::Counted,
    };
    const COMMON: Reader = Reader {
        of: "Any test",
        keys: &[FileKey::known(&["id"], "a name")],
        shared: &[],
        unlisted: Unlisted::Counted,
    };

    #[test]
    fn keys_are_known_ignored_refused_or_counted() {
        let check = |value: Value| READER.check(value.as_object().unwrap()).map(|names| names.join(" "));
        for (object, expected) in [
            (json!({"r": 1, "note": {}, "x": 1, "scale": null}), Ok("x")),
            (json!({"rank": 1, "scale": 1.0, "id": 7}), Ok("")),
            (json!({"scale": "none"}), Ok("")),
            (json!({"scale": []}), Ok("")),
            (json!({"scale": 0.5}), Err("\"scale\" = 0.5 is not supported: write 1")),
            (json!({"scale": "1"}), Err("\"scale\" = \"1\" is not supported: write 1")),
            (json!({"scale": [1]}), Err("\"scale\" = [1] is not supported: write 1")),
        ] {
            let expected = expected.map(str::to_owned).map_err(str::to_owned);
            assert_eq!(check(object.clone()), expected, "{object}");
        }
        let long = check(json!({"scale": "a".repeat(99_999)})).unwrap_err();
        assert!(long.len() < 200, "{long}");
    }

    #[test]
    fn unlisted_keys_that_say_something_are_refused() {
        let strict = Reader { unlisted: Unlisted::RefusedIfSet, ..READER };
        let check = |value: Value| strict.check(value.as_object().unwrap()).map(|names| names.len());
        let nothing = json!({"a": null, "b": false, "c": 0, "d": "", "e": [], "f": {}, "r": 1});
        assert_eq!(check(nothing), Ok(6));
        for value in [json!(true), json!(0.1), json!("x"), json!([0]), json!({"g": null})] {
            assert_eq!(check(json!({"a": value})), Err(format!("\"a\" = {value} is not known")));
        }
    }

    #[test]
    fn texts_are_checked_by_the_same_list() {
        let strict = Reader { unlisted: Unlisted::Refused, ..READER };
        assert_eq!(READER.check_text("scale", "1"), Ok(true));
        assert_eq!(READER.check_text("other", "1"), Ok(false));
        assert!(READER.check_text("scale", "2").unwrap_err().starts_with("scale = 2 is not"));
        assert_eq!(strict.check_text("x", "1").unwrap_err(), "\"x\" is not known; known: r, rank");
    }

    #[test]
    fn a_section_lists_all_keys() {
        let section = READER.section();
        assert!(section.starts_with("### A test\n\n| key | treatment | |\n"));
        assert!(section.contains("| `r`, `rank` | read | the rank |\n"));
        assert!(section.contains("| `scale` | refused, but for `1`, `\"none\"`, `[]` | write 1 |\n"));
        assert!(section.contains("\nThe keys of *Any test* are listed there. Other keys are left out, and"));
    }
}
