//! Ranks and scales of single modules in an `adapter_config.json`: `rank_pattern` and `alpha_pattern`.

use serde_json::{Map, Value};

use super::FolderConfig;
use super::peft_targets::ported;
use crate::targets::REGEX;

/// Reads the object `key` as texts such as `q_proj=8`. Each name is a regular expression for the end of a
/// module's name.
///
/// # Errors
/// A value is not a number, or a name is not a regular expression.
pub(super) fn read(config: &FolderConfig, key: &str) -> Result<Vec<String>, String> {
    let Some(object) = config.object(key)? else { return Ok(Vec::new()) };
    let text = |(name, value): (&str, &Value)| match value.is_number() {
        true => Ok(format!("{}={value}", target(name)?)),
        false => Err(format!("{key} has no number for \"{name}\"")),
    };
    object.entries().map(text).collect()
}

/// Converts a name in PEFT's syntax to a target.
fn target(name: &str) -> Result<String, String> {
    let is_plain = |character: char| character.is_alphanumeric() || "._-".contains(character);
    match name.chars().all(is_plain) {
        true => Ok(name.to_owned()),
        false => Ok(format!("{REGEX}(?:.*\\.)?(?:{})", ported(name)?)),
    }
}

/// Returns a JSON object from module names to numbers, for the modules for which `value` returns a number.
pub(super) fn written<'a>(
    modules: impl Iterator<Item = &'a str>,
    value: impl Fn(&str) -> Option<Value>,
) -> Map<String, Value> {
    modules.filter_map(|module| Some((module.to_owned(), value(module)?))).collect()
}
