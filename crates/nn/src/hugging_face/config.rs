//! The `config.json` of a Hugging Face folder.

use std::borrow::Cow;

use serde_json::{Map, Value};
use system::quoted::shortened;
use system::readers::Reader;

type Result<T> = std::result::Result<T, String>;

/// The settings of a `config.json`. Errors are sentences that name the setting.
#[derive(Clone, Debug)]
pub struct FolderConfig(Map<String, Value>);

impl FolderConfig {
    /// Parses the file's text. Python writes numbers that are not finite as words, which JSON does not have;
    /// here they are objects, as transformers 5 writes them.
    ///
    /// # Errors
    /// The text is not a JSON object.
    pub fn parse(text: &str) -> Result<Self> {
        let text = with_finite_numbers(text);
        let map = serde_json::from_str(&text).map_err(|error| format!("it is no JSON object: {error}"))?;
        Ok(FolderConfig(map))
    }

    /// Value of `model_type`, or of timm's `architecture`.
    pub fn model_type(&self) -> Result<&str> {
        let named = self.text("model_type")?.or(self.text("architecture")?);
        named.ok_or_else(|| missing("model_type"))
    }

    /// Returns the positive integer `key`.
    pub fn count(&self, key: &str) -> Result<usize> {
        self.optional_count(key)?.ok_or_else(|| missing(key))
    }

    /// Returns the positive integer `key`; `None` if absent or null.
    pub fn optional_count(&self, key: &str) -> Result<Option<usize>> {
        self.read(key, "a positive integer", |value| {
            value.as_u64().and_then(|count| usize::try_from(count).ok()).filter(|count| *count > 0)
        })
    }

    /// Returns the number `key`; `None` if absent or null.
    pub fn number(&self, key: &str) -> Result<Option<f64>> {
        self.read(key, "a number", Value::as_f64)
    }

    /// Returns the boolean `key`; `None` if absent or null.
    pub fn flag(&self, key: &str) -> Result<Option<bool>> {
        self.read(key, "true or false", Value::as_bool)
    }

    /// Returns the string `key`; `None` if absent or null.
    pub fn text<'a>(&'a self, key: &str) -> Result<Option<&'a str>> {
        self.read(key, "a string", Value::as_str)
    }

    /// Returns the object `key`; `None` if absent or null.
    pub fn object(&self, key: &str) -> Result<Option<FolderConfig>> {
        self.read(key, "an object", |value| value.as_object().cloned().map(FolderConfig))
    }

    /// Returns the list of strings `key`; `None` if absent or null.
    pub fn texts(&self, key: &str) -> Result<Option<Vec<&str>>> {
        self.read(key, "a list of strings", |value| value.as_array()?.iter().map(Value::as_str).collect())
    }

    /// Returns the list of non-negative integers `key`; `None` if absent or null.
    pub fn counts(&self, key: &str) -> Result<Option<Vec<usize>>> {
        self.read(key, "a list of whole numbers", |value| {
            let count = |value: &Value| usize::try_from(value.as_u64()?).ok();
            value.as_array()?.iter().map(count).collect()
        })
    }

    /// Returns the list of numbers `key`; `None` if absent or null.
    pub fn numbers(&self, key: &str) -> Result<Option<Vec<f64>>> {
        self.read(key, "a list of numbers", |value| value.as_array()?.iter().map(Value::as_f64).collect())
    }

    /// All keys with their values.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// Returns the value of `key`; `None` if absent or null.
    pub fn value(&self, key: &str) -> Option<&Value> {
        self.0.get(key).filter(|value| !value.is_null())
    }

    /// Returns whether `key` is present, even if null.
    pub fn has(&self, key: &str) -> bool {
        self.0.contains_key(key)
    }

    /// Checks all keys, and returns the keys unknown to the reader.
    ///
    /// # Errors
    /// A key with an unsupported value.
    pub fn check(&self, reader: &Reader) -> Result<Vec<&str>> {
        reader.check(&self.0)
    }

    /// Returns the non-negative integer `key`; `None` if absent or null.
    pub fn whole(&self, key: &str) -> Result<Option<usize>> {
        self.read(key, "a whole number", |value| usize::try_from(value.as_u64()?).ok())
    }

    /// Returns whether `key` is absent, null, or an empty string, object or list.
    pub fn is_empty(&self, key: &str) -> bool {
        match self.0.get(key) {
            None | Some(Value::Null) => true,
            Some(Value::Object(entries)) => entries.is_empty(),
            Some(Value::Array(entries)) => entries.is_empty(),
            Some(Value::String(text)) => text.is_empty(),
            Some(_) => false,
        }
    }

    /// Returns the same configuration with defaults of absent settings.
    #[must_use]
    pub fn with_defaults(mut self, defaults: &[(&str, Value)]) -> Self {
        for (key, value) in defaults {
            self.0.entry((*key).to_owned()).or_insert_with(|| value.clone());
        }
        self
    }

    /// Returns all settings.
    #[must_use]
    pub fn into_settings(self) -> Map<String, Value> {
        self.0
    }

    /// Creates a configuration with these settings.
    pub fn from_settings(settings: Map<String, Value>) -> Self {
        FolderConfig(settings)
    }

    /// Returns an error if the boolean `key` is present and not `built`.
    pub fn only(&self, key: &str, built: bool) -> Result<()> {
        match self.flag(key)? {
            Some(value) if value != built => {
                Err(format!("{key} = {value} is not supported; supported: {built}"))
            }
            _ => Ok(()),
        }
    }

    fn read<'a, T>(
        &'a self,
        key: &str,
        takes: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        match self.0.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => read(value).map(Some).ok_or_else(|| {
                let value = value.to_string();
                format!("{key} = {} is not {takes}", shortened(&value))
            }),
        }
    }
}

/// Returns a text in which objects stand for numbers that are not finite.
fn with_finite_numbers(text: &str) -> Cow<'_, str> {
    const WORDS: [&str; 3] = ["-Infinity", "Infinity", "NaN"];
    if !WORDS.iter().any(|word| text.contains(word)) {
        return text.into();
    }
    let mut written = String::new();
    let mut in_string = false;
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let word = WORDS.into_iter().find(|word| !in_string && rest.starts_with(word));
        let length = match word {
            Some(word) => {
                written.push_str(&format!("{{\"__float__\": \"{word}\"}}"));
                word.len()
            }
            None => {
                let is_escape = in_string && first == '\\';
                let length = rest.chars().take(if is_escape { 2 } else { 1 }).map(char::len_utf8).sum();
                in_string ^= first == '"';
                written.push_str(&rest[..length]);
                length
            }
        };
        rest = &rest[length..];
    }
    written.into()
}

fn missing(key: &str) -> String {
    format!("it has no {key}")
}

#[cfg(test)]
mod tests {
    use super::FolderConfig;

    #[test]
    fn numbers_that_are_not_finite_are_objects() {
        let text = r#"{"limit": [0.0, Infinity], "least": -Infinity, "note": "an \"Infinity\\", "x": NaN}"#;
        let config = FolderConfig::parse(text).unwrap();
        let expected = serde_json::json!({
            "limit": [0.0, {"__float__": "Infinity"}],
            "least": {"__float__": "-Infinity"},
            "note": "an \"Infinity\\",
            "x": {"__float__": "NaN"},
        });
        assert_eq!(serde_json::Value::Object(config.into_settings()), expected);
        assert!(FolderConfig::parse("{\"a\": Infinite}").is_err());
    }
}
