//! JSON as Python writes it, which is what templates expect of `tojson`.

use serde::Serialize;
use serde_json::Value;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};
use std::io::{Result, Write};

/// `json.dumps(value, ensure_ascii=False)`: a space after commas and colons.
struct OneLine;

impl Formatter for OneLine {
    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> Result<()> {
        writer.write_all(b": ")
    }
}

/// Writes `value` on one line, or with an indent of so many spaces.
///
/// # Errors
/// Errors of the writer.
pub(super) fn python_json(
    value: &Value,
    indent: Option<usize>,
    text: &mut impl Write,
) -> serde_json::Result<()> {
    match indent {
        None => value.serialize(&mut Serializer::with_formatter(text, OneLine)),
        Some(width) => {
            let spaces = " ".repeat(width);
            let formatter = PrettyFormatter::with_indent(spaces.as_bytes());
            value.serialize(&mut Serializer::with_formatter(text, formatter))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::python_json;
    use serde_json::json;

    #[test]
    fn json_is_that_of_python() {
        for (value, indent, expected) in [
            (
                json!({"a": [1, 2.5, "é<&'"], "b": null, "c": {}}),
                None,
                r#"{"a": [1, 2.5, "é<&'"], "b": null, "c": {}}"#,
            ),
            (json!([1]), Some(2), "[\n  1\n]"),
        ] {
            let mut text = Vec::new();
            python_json(&value, indent, &mut text).unwrap();
            assert_eq!(String::from_utf8(text).unwrap(), expected);
        }
    }
}
