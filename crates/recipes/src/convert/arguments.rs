//! Parses another trainer's file of arguments, YAML or JSON, as named values.

use serde_json::{Map, Value};
use system::quoted::shortened;

use super::yaml;
use crate::error::{RecipeError, Result};

/// Values that mean "off".
const OFF: [&str; 5] = ["", "no", "none", "off", "false"];

/// Parses the arguments in a file's text; `name` is the file's name in errors.
///
/// # Errors
/// The text is neither YAML nor JSON, or has no named values.
pub(crate) fn parse(text: &str, name: &str) -> Result<Map<String, Value>> {
    let refused = |reason: &str| RecipeError::Refused(format!("{name}: {reason}"));
    let value =
        yaml::parse(text).map_err(|reason| refused(&format!("it is neither YAML nor JSON: {reason}")))?;
    match value {
        Value::Object(arguments) if !arguments.is_empty() => Ok(arguments),
        _ => Err(refused("it has no arguments, as `learning_rate: 2e-4` is one")),
    }
}

/// Returns whether a value means "off" in other trainers' files.
pub(crate) fn is_off(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::String(text) => OFF.contains(&text.to_ascii_lowercase().as_str()),
        Value::Array(list) => list.iter().all(is_off),
        Value::Object(entries) => entries.is_empty(),
        Value::Number(_) => false,
    }
}

/// Returns a number, which may be in quotes.
pub(crate) fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => {
            text.trim().replace('_', "").parse().ok().filter(|number: &f64| number.is_finite())
        }
        _ => None,
    }
}

/// Returns a count: a whole number of at least 0.
pub(crate) fn count(value: &Value) -> Option<u64> {
    let number = number(value)?;
    (number >= 0.0 && number.fract() == 0.0 && number <= 2_f64.powi(53)).then_some(number as u64)
}

/// Returns whether a value means "on" in other trainers' files.
pub(crate) fn is_on(value: &Value) -> bool {
    match value {
        Value::Bool(flag) => *flag,
        Value::String(text) => matches!(text.to_ascii_lowercase().as_str(), "true" | "yes" | "on"),
        _ => false,
    }
}

/// Returns the strings of a list, or the comma-separated parts of a string.
pub(crate) fn texts(value: &Value) -> Option<Vec<String>> {
    match value {
        Value::String(text) => {
            let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
            Some(parts.map(str::to_owned).collect())
        }
        Value::Array(list) => list.iter().map(|text| text.as_str().map(str::to_owned)).collect(),
        _ => None,
    }
}

/// Formats a value on one line.
pub(crate) fn shown(value: &Value) -> String {
    let text = match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    shortened(&text.replace(['\n', '\r'], " ")).into_owned()
}
