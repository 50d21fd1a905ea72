//! `[[data.mixture]]`: the sources of mixed training data.

use keys::{Reading, Takes, Value, read_tables, unknown_in_table};

/// A source of mixed training data.
#[derive(Clone, Debug, PartialEq)]
pub struct MixtureSource {
    /// Files and globs of training data.
    pub paths: Vec<String>,
    /// Files and globs for validation; by default, the end of `paths`.
    pub validation_paths: Vec<String>,
    /// Relative share of the training sequences.
    pub weight: f64,
}

const PATHS: &str = "paths";
const WEIGHT: &str = "weight";
const VALIDATION_PATHS: &str = "validation_paths";

impl MixtureSource {
    pub(crate) const KEYS: &'static [&'static str] = &[PATHS, WEIGHT, VALIDATION_PATHS];

    pub(crate) fn read_all(value: &Value, _: &Takes) -> Reading<Vec<Self>> {
        read_tables(value, "source", Self::read)
    }

    /// Reads a source.
    ///
    /// # Errors
    /// A sentence about a key that is unknown, missing or of another type, missing paths, or an invalid
    /// weight.
    fn read(entries: &[(String, Value)]) -> Result<Self, String> {
        let list = |key: &str, value: &Value| {
            texts(value).ok_or_else(|| format!("{key} = {value} is not a list of strings"))
        };
        let mut source = Self { paths: Vec::new(), validation_paths: Vec::new(), weight: 1.0 };
        for (key, value) in entries {
            match (key.as_str(), value) {
                (PATHS, _) => source.paths = list(key, value)?,
                (VALIDATION_PATHS, _) => source.validation_paths = list(key, value)?,
                (WEIGHT, Value::Float(weight)) if weight.is_finite() && *weight > 0.0 => {
                    source.weight = *weight;
                }
                (WEIGHT, Value::Integer(weight)) if *weight > 0 => source.weight = *weight as f64,
                (WEIGHT, _) => return Err(format!("weight = {value} is not a positive number")),
                _ => return Err(unknown_in_table(key, Self::KEYS)),
            }
        }
        if source.paths.is_empty() { Err("it has no paths".to_owned()) } else { Ok(source) }
    }

    fn value(&self) -> Value {
        let entry = |key: &str, value: Value| (key.to_owned(), value);
        Value::Table(vec![
            entry(PATHS, self.paths.as_slice().into()),
            entry(WEIGHT, self.weight.into()),
            entry(VALIDATION_PATHS, self.validation_paths.as_slice().into()),
        ])
    }
}

#[allow(clippy::ptr_arg, reason = "a row writes a reference to its field's type")]
pub(crate) fn value(sources: &Vec<MixtureSource>) -> Value {
    Value::List(sources.iter().map(MixtureSource::value).collect())
}

/// Returns only the weights, which affect a run's results; the corpora have hashes of their own.
pub(crate) fn weights(sources: &[MixtureSource]) -> Value {
    Value::List(sources.iter().map(|source| source.weight.into()).collect())
}

fn texts(value: &Value) -> Option<Vec<String>> {
    let Value::List(values) = value else { return None };
    let text = |value: &Value| match value {
        Value::Text(text) => Some(text.clone()),
        _ => None,
    };
    values.iter().map(text).collect()
}
