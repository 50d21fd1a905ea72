//! Parses JSON as Python's `json` does, with NaN, Infinity and halves of surrogate pairs, which serde_json
//! refuses.

use serde_json::{Map, Value};

/// Two sets of replacements. Values that differ between the two readings contain something replaced.
const FIRST: Replacements = Replacements { number: b"null", surrogate: b"\\ufffd" };
const SECOND: Replacements = Replacements { number: b"true", surrogate: b"\\ufffe" };

/// Replacements for what JSON does not allow.
#[derive(Clone, Copy)]
struct Replacements {
    /// Replaces a non-finite number.
    number: &'static [u8],
    /// Replaces half of a surrogate pair.
    surrogate: &'static [u8],
}

/// An object, with the keys whose values contain a non-finite number or half a surrogate pair. These are
/// replaced by null and U+FFFD.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Object {
    pub(crate) values: Map<String, Value>,
    pub(crate) unreadable: Vec<String>,
}

impl Object {
    /// Parses an object.
    ///
    /// # Errors
    /// A sentence: the text is invalid in both JSON and Python, or is not an object.
    pub(crate) fn parse(text: &[u8]) -> Result<Self, String> {
        match serde_json::from_slice(text) {
            Ok(value) => Ok(Self { values: object(value)?, unreadable: Vec::new() }),
            Err(error) => {
                let Some(first) = repaired(text, FIRST) else { return Err(sentence(&error)) };
                let values = parse(&first)?;
                let second = parse(&repaired(text, SECOND).unwrap_or(first))?;
                let differs =
                    |(key, value): (&String, &Value)| (second.get(key) != Some(value)).then(|| key.clone());
                Ok(Self { unreadable: values.iter().filter_map(differs).collect(), values })
            }
        }
    }
}

/// Returns the string at `key` of an object that Python accepts and JSON does not, if it has the key; `None`
/// for other text.
#[must_use]
pub fn python_text(text: &[u8], key: &str) -> Option<Result<Option<String>, String>> {
    repaired(text, FIRST)?;
    let Object { values, unreadable } = Object::parse(text).ok()?;
    let text = |value: &Value| match value.as_str() {
        Some(text) if !unreadable.iter().any(|name| name == key) => Ok(text.to_owned()),
        Some(_) => Err(format!("\"{key}\" has half of a surrogate pair, which no text can have")),
        None => Err(format!("\"{key}\" is not a string")),
    };
    Some(values.get(key).map(text).transpose())
}

fn parse(text: &[u8]) -> Result<Map<String, Value>, String> {
    object(serde_json::from_slice(text).map_err(|error| sentence(&error))?)
}

fn object(value: Value) -> Result<Map<String, Value>, String> {
    match value {
        Value::Object(values) => Ok(values),
        _ => Err("it is no JSON object".to_owned()),
    }
}

/// Returns the error message for a line that is not JSON. The parser's line number is left out, because it is
/// always 1 or misleading.
fn sentence(error: &serde_json::Error) -> String {
    if error.is_eof() {
        return "it is no JSON object: it does not end on its line".to_owned();
    }
    let text = error.to_string();
    let text = text.rsplit_once(" at line ").map_or(text.as_str(), |(reason, _)| reason);
    format!("it is no JSON: {text} at column {}", error.column())
}

/// Replaces non-finite numbers and halves of surrogate pairs; `None` if there are none.
fn repaired(text: &[u8], by: Replacements) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    let mut is_repaired = false;
    let mut in_string = false;
    while let Some(byte) = rest.first() {
        let (length, replacement) = match byte {
            b'\\' if in_string => escape(rest, by.surrogate),
            b'"' => {
                in_string = !in_string;
                (1, None)
            }
            b'-' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' if !in_string => word(rest, by.number),
            _ => (1, None),
        };
        let (read, after) = rest.split_at(length.min(rest.len()));
        out.extend_from_slice(replacement.unwrap_or(read));
        is_repaired |= replacement.is_some();
        rest = after;
    }
    is_repaired.then_some(out)
}

/// Returns the length of the escape at the start of `text`, and the replacement if it is half a surrogate
/// pair.
fn escape<'a>(text: &[u8], replacement: &'a [u8]) -> (usize, Option<&'a [u8]>) {
    let unit = |text: &[u8]| {
        let digits = text.strip_prefix(b"\\u")?.get(..4)?;
        u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
    };
    match unit(text) {
        None => (2, None),
        Some(0xD800..=0xDBFF) => match text.get(6..).and_then(unit) {
            Some(0xDC00..=0xDFFF) => (12, None),
            _ => (6, Some(replacement)),
        },
        Some(0xDC00..=0xDFFF) => (6, Some(replacement)),
        Some(_) => (6, None),
    }
}

/// Returns the length of the number or name at the start of `text`, and the replacement if it is a non-finite
/// number.
fn word<'a>(text: &[u8], replacement: &'a [u8]) -> (usize, Option<&'a [u8]>) {
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
    let length = text.iter().take_while(|byte| is_part(byte)).count();
    let word = std::str::from_utf8(&text[..length]).unwrap_or_default();
    let is_number = word.starts_with(|first: char| first == '-' || first.is_ascii_digit());
    let is_infinite = || is_number && word.parse().is_ok_and(f64::is_infinite);
    let is_replaced = matches!(word, "NaN" | "Infinity" | "-Infinity") || is_infinite();
    (length, is_replaced.then_some(replacement))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_python_reads_is_read_and_named_by_its_key() {
        for (text, values, unreadable) in [
            (r#"{"a": 1, "b": "NaN \ud83d\ude00"}"#, json!({"a": 1, "b": "NaN 😀"}), vec![]),
            (
                r#"{"a":NaN,"b":[-Infinity,{"c":Infinity}],"d":1}"#,
                json!({"a": null, "b": [null, {"c": null}], "d": 1}),
                vec!["a", "b"],
            ),
            (
                r#"{"a": 1e999, "b": -1E400, "c": 1e-999, "NaN": 2}"#,
                json!({"a": null, "b": null, "c": 0.0, "NaN": 2}),
                vec!["a", "b"],
            ),
            (
                r#"{"a": "x\ud83dy", "b": "\\ud83d", "c": "\ude00\ud83d\ude00"}"#,
                json!({"a": "x\u{fffd}y", "b": "\\ud83d", "c": "\u{fffd}😀"}),
                vec!["a", "c"],
            ),
        ] {
            let object = Object::parse(text.as_bytes()).unwrap();
            assert_eq!(json!(object.values), values, "{text}");
            assert_eq!(object.unreadable, unreadable, "{text}");
        }
    }

    #[test]
    fn other_text_is_refused_with_its_column() {
        for (text, expected) in [
            ("{\"a\": nan}", "it is no JSON: expected ident at column"),
            ("{\"a\": NaN, b}", "it is no JSON: key must be a string at column"),
            ("[NaN]", "it is no JSON object"),
            ("7", "it is no JSON object"),
            ("{\"a\": ", "it is no JSON object: it does not end on its line"),
            ("{\"a\": \"\\ud83d", "it is no JSON object: it does not end on its line"),
        ] {
            let refused = Object::parse(text.as_bytes()).unwrap_err();
            assert!(refused.starts_with(expected), "{text}: {refused}");
        }
    }
}
