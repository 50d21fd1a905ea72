//! Parsing of `--set` arguments.

use toml::de::DeValue;

use crate::entry::{Entry, shorten};
use crate::error::{Error, Result};
use crate::origin::Origin;
use crate::table::Table;
use crate::takes::Takes;
use crate::value::Value;

/// Parses an argument `section.key=value`.
///
/// # Errors
/// Another form, a key that does not exist.
pub(crate) fn entry(table: &Table, argument: &str) -> Result<(&'static str, Entry)> {
    let origin = Origin::Override { argument: shorten(argument) };
    let Some((path, text)) = argument.split_once('=').map(|(path, text)| (path.trim(), text.trim())) else {
        return Err(Error::BadOverride { origin });
    };
    if path.is_empty() {
        return Err(Error::BadOverride { origin });
    }
    let Some(key) = table.find(path) else { return Err(table.unknown_key(origin, path)) };
    if text.is_empty() && !matches!(key.takes, Takes::Text | Takes::Described(_)) {
        return Err(Error::BadOverride { origin });
    }
    // Shells remove the quotes of strings. Therefore text that is not TOML is a string, and so is any
    // unquoted text for a key of strings.
    let string = match key.takes {
        Takes::Text | Takes::Choice(_) => !text.starts_with(['"', '\'']),
        Takes::ChoiceOrIntegers(..) | Takes::TextOrTexts => !text.starts_with(['"', '\'', '[']),
        _ => false,
    };
    let parsed = if string { None } else { DeValue::parse(text).ok() };
    let value = parsed.map_or_else(|| text.into(), |value| Value::from_toml(value.get_ref()));
    let shown = match &value {
        Value::Text(_) => shorten(&value.to_string()),
        _ => shorten(text),
    };
    Ok((key.path, Entry { value, shown, origin }))
}
