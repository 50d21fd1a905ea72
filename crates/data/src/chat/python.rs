//! Formats values as Python does, which chat templates expect.

use minijinja::value::{Value, ValueKind};
use std::fmt::{Result, Write};

/// Maximum nesting depth of lists and objects.
const MOST_DEPTH: usize = 200;

/// The options of `json.dumps`.
#[derive(Clone, Debug)]
pub(super) struct JsonOptions {
    /// Whether to escape characters beyond ASCII.
    pub(super) ensure_ascii: bool,
    /// The indent per level; `None` writes everything on one line.
    pub(super) indent: Option<String>,
    /// The separators between items, and between a key and its value.
    pub(super) separators: [String; 2],
    pub(super) sort_keys: bool,
}

/// Writes `value` as `json.dumps` does.
///
/// # Errors
/// The value cannot be JSON, or the writer fails.
pub(super) fn write_json(
    value: &Value,
    options: &JsonOptions,
    depth: usize,
    text: &mut impl Write,
) -> Result {
    match value.kind() {
        _ if depth > MOST_DEPTH => Err(std::fmt::Error),
        ValueKind::None => text.write_str("null"),
        ValueKind::Bool => text.write_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => write_number(value, ["NaN", "Infinity", "-Infinity"], text),
        ValueKind::String => write_json_text(value.as_str().unwrap_or_default(), options, text),
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<Value> = value.try_iter().map_err(|_| std::fmt::Error)?.collect();
            write_items(["[", "]"], &items, options, depth, text, &mut |item, text| {
                write_json(item, options, depth + 1, text)
            })
        }
        ValueKind::Map => {
            let mut entries = entries(value)?;
            if options.sort_keys {
                entries.sort_by(|(one, _), (other, _)| one.cmp(other));
            }
            write_items(["{", "}"], &entries, options, depth, text, &mut |(key, item), text| {
                write_json_text(key, options, text)?;
                text.write_str(&options.separators[1])?;
                write_json(item, options, depth + 1, text)
            })
        }
        _ => Err(std::fmt::Error),
    }
}

/// Writes the items of a list or object between brackets.
fn write_items<I, W: Write>(
    [open, close]: [&str; 2],
    items: &[I],
    options: &JsonOptions,
    depth: usize,
    text: &mut W,
    write: &mut dyn FnMut(&I, &mut W) -> Result,
) -> Result {
    let new_line = |depth: usize, text: &mut W| match &options.indent {
        Some(indent) if !items.is_empty() => {
            text.write_char('\n')?;
            (0..depth).try_for_each(|_| text.write_str(indent))
        }
        _ => Ok(()),
    };
    text.write_str(open)?;
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            text.write_str(&options.separators[0])?;
        }
        new_line(depth + 1, text)?;
        write(item, text)?;
    }
    new_line(depth, text)?;
    text.write_str(close)
}

/// Returns the entries of a map, with keys as text.
fn entries(map: &Value) -> std::result::Result<Vec<(String, Value)>, std::fmt::Error> {
    let mut entries = Vec::new();
    for key in map.try_iter().map_err(|_| std::fmt::Error)? {
        let item = map.get_item(&key).map_err(|_| std::fmt::Error)?;
        let name = match key.kind() {
            ValueKind::String => key.as_str().unwrap_or_default().to_owned(),
            ValueKind::None => "null".to_owned(),
            ValueKind::Bool => if key.is_true() { "true" } else { "false" }.to_owned(),
            ValueKind::Number => {
                let mut name = String::new();
                write_number(&key, ["NaN", "Infinity", "-Infinity"], &mut name)?;
                name
            }
            _ => return Err(std::fmt::Error),
        };
        entries.push((name, item));
    }
    Ok(entries)
}

fn write_json_text(string: &str, options: &JsonOptions, text: &mut impl Write) -> Result {
    text.write_char('"')?;
    for character in string.chars() {
        match character {
            '"' => text.write_str("\\\"")?,
            '\\' => text.write_str("\\\\")?,
            '\n' => text.write_str("\\n")?,
            '\r' => text.write_str("\\r")?,
            '\t' => text.write_str("\\t")?,
            '\u{8}' => text.write_str("\\b")?,
            '\u{C}' => text.write_str("\\f")?,
            '\0'..='\u{1F}' => write!(text, "\\u{:04x}", u32::from(character))?,
            ' '..='~' => text.write_char(character)?,
            _ if options.ensure_ascii => {
                let mut units = [0; 2];
                for unit in character.encode_utf16(&mut units) {
                    write!(text, "\\u{unit:04x}")?;
                }
            }
            _ => text.write_char(character)?,
        }
    }
    text.write_char('"')
}

/// Writes `value` as `str` does.
pub(super) fn write_text(value: &Value, text: &mut impl Write) -> Result {
    match value.kind() {
        ValueKind::Undefined => Ok(()),
        ValueKind::String => text.write_str(value.as_str().unwrap_or_default()),
        _ => write_repr(value, 0, text),
    }
}

/// Writes `value` as `repr` does.
fn write_repr(value: &Value, depth: usize, text: &mut impl Write) -> Result {
    match value.kind() {
        _ if depth > MOST_DEPTH => Err(std::fmt::Error),
        ValueKind::None => text.write_str("None"),
        ValueKind::Bool => text.write_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => write_number(value, ["nan", "inf", "-inf"], text),
        ValueKind::String => write_repr_text(value.as_str().unwrap_or_default(), text),
        ValueKind::Seq => {
            text.write_char('[')?;
            for (index, item) in value.try_iter().into_iter().flatten().enumerate() {
                text.write_str(if index > 0 { ", " } else { "" })?;
                write_repr(&item, depth + 1, text)?;
            }
            text.write_char(']')
        }
        ValueKind::Map => {
            text.write_char('{')?;
            for (index, key) in value.try_iter().into_iter().flatten().enumerate() {
                text.write_str(if index > 0 { ", " } else { "" })?;
                write_repr(&key, depth + 1, text)?;
                text.write_str(": ")?;
                write_repr(&value.get_item(&key).unwrap_or_default(), depth + 1, text)?;
            }
            text.write_char('}')
        }
        _ => write!(text, "{value}"),
    }
}

fn write_repr_text(string: &str, text: &mut impl Write) -> Result {
    let quote = if string.contains('\'') && !string.contains('"') { '"' } else { '\'' };
    text.write_char(quote)?;
    for character in string.chars() {
        match (character, u32::from(character)) {
            ('\\', _) => text.write_str("\\\\")?,
            ('\n', _) => text.write_str("\\n")?,
            ('\r', _) => text.write_str("\\r")?,
            ('\t', _) => text.write_str("\\t")?,
            (own, _) if own == quote => write!(text, "\\{own}")?,
            (' ', _) => text.write_char(' ')?,
            (hidden, number) if hidden.is_control() || hidden.is_whitespace() => match number {
                0..=0xFF => write!(text, "\\x{number:02x}")?,
                _ => write!(text, "\\u{number:04x}")?,
            },
            (shown, _) => text.write_char(shown)?,
        }
    }
    text.write_char(quote)
}

/// Writes a number. `special` are the spellings of NaN, infinity and negative infinity.
fn write_number(number: &Value, special: [&str; 3], text: &mut impl Write) -> Result {
    if number.is_integer() {
        return write!(text, "{number}");
    }
    let float = f64::try_from(number.clone()).map_err(|_| std::fmt::Error)?;
    if float.is_nan() {
        return text.write_str(special[0]);
    }
    if float.is_infinite() {
        return text.write_str(special[if float > 0.0 { 1 } else { 2 }]);
    }
    // The shortest digits, as in Python, which writes exponents below -4 and from 16 on.
    let digits = format!("{float:e}");
    let exponent: i32 = digits.split_once('e').and_then(|(_, exponent)| exponent.parse().ok()).unwrap_or(0);
    if (-4..16).contains(&exponent) {
        return write!(text, "{float:?}");
    }
    let mantissa = digits.split_once('e').map_or("0", |(mantissa, _)| mantissa);
    let sign = if exponent < 0 { '-' } else { '+' };
    write!(text, "{mantissa}e{sign}{:02}", exponent.abs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn dumped(value: &serde_json::Value, options: &JsonOptions) -> String {
        let mut text = String::new();
        write_json(&Value::from_serialize(value), options, 0, &mut text).unwrap();
        text
    }

    /// Output equals that of `json.dumps` in Python 3.11.
    #[test]
    fn json_is_that_of_python() {
        let plain = JsonOptions {
            ensure_ascii: false,
            indent: None,
            separators: [", ", ": "].map(str::to_owned),
            sort_keys: false,
        };
        let value = json!({"b": [1, 2.5, "\u{E9}<&'\u{7F}\u{1}"], "a": null, "c": {}, "d": [], "e": true});
        for (options, expected) in [
            (
                plain.clone(),
                "{\"b\": [1, 2.5, \"\u{E9}<&'\u{7F}\\u0001\"], \"a\": null, \"c\": {}, \"d\": [], \"e\": true}",
            ),
            (
                JsonOptions {
                    ensure_ascii: true,
                    separators: [",", ":"].map(str::to_owned),
                    sort_keys: true,
                    ..plain.clone()
                },
                "{\"a\":null,\"b\":[1,2.5,\"\\u00e9<&'\\u007f\\u0001\"],\"c\":{},\"d\":[],\"e\":true}",
            ),
            (
                JsonOptions {
                    indent: Some("  ".to_owned()),
                    separators: [",", ": "].map(str::to_owned),
                    ..plain.clone()
                },
                "{\n  \"b\": [\n    1,\n    2.5,\n    \"\u{E9}<&'\u{7F}\\u0001\"\n  ],\n  \"a\": null,\n  \"c\": {},\n  \
                 \"d\": [],\n  \"e\": true\n}",
            ),
        ] {
            assert_eq!(dumped(&value, &options), expected, "{options:?}");
        }
        let ascii = JsonOptions { ensure_ascii: true, ..plain.clone() };
        assert_eq!(dumped(&json!("\u{1F600}\n"), &ascii), r#""\ud83d\ude00\n""#);
        let numbers = json!([1e5, 1e15, 1e16, 1.5e-5, 0.0001, 123456789012345680.0, -0.0, 1e300, 3]);
        assert_eq!(
            dumped(&numbers, &plain),
            "[100000.0, 1000000000000000.0, 1e+16, 1.5e-05, 0.0001, 1.2345678901234568e+17, -0.0, 1e+300, 3]"
        );
    }

    /// Output equals that of `str` in Python 3.11.
    #[test]
    fn text_is_that_of_python() {
        for (value, expected) in [
            (json!(null), "None"),
            (json!(true), "True"),
            (json!(2.0), "2.0"),
            (json!("a'b"), "a'b"),
            (
                json!({"unit": "C", "all": [1, false, "it's", "a\"b", "\n\u{1}", "a'\"\\"]}),
                r#"{'unit': 'C', 'all': [1, False, "it's", 'a"b', '\n\x01', 'a\'"\\']}"#,
            ),
        ] {
            let mut text = String::new();
            write_text(&Value::from_serialize(&value), &mut text).unwrap();
            assert_eq!(text, expected, "{value}");
        }
    }
}
