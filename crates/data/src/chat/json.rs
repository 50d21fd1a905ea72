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

/// Returns `value` on one line, or with an indent of so many spaces.
pub(super) fn python_json(value: &Value, indent: Option<usize>) -> String {
    let mut text = Vec::new();
    let written = match indent {
        None => value.serialize(&mut Serializer::with_formatter(&mut text, OneLine)),
        Some(width) => {
            let spaces = " ".repeat(width);
            let formatter = PrettyFormatter::with_indent(spaces.as_bytes());
            value.serialize(&mut Serializer::with_formatter(&mut text, formatter))
        }
    };
    // A JSON value can always be written to memory.
    written.map(|()| String::from_utf8_lossy(&text).into_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::python_json;
    use serde_json::json;

    #[test]
    fn json_is_that_of_python() {
        let value = json!({"a": [1, 2.5, "é<&'"], "b": null, "c": {}});
        assert_eq!(python_json(&value, None), r#"{"a": [1, 2.5, "é<&'"], "b": null, "c": {}}"#);
        assert_eq!(python_json(&json!([1]), Some(2)), "[\n  1\n]");
    }
}
