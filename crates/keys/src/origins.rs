//! Origins of all values of a configuration, for errors found after it was resolved.

use std::collections::BTreeMap;

use crate::origin::Origin;
use crate::value::Value;

/// Origins of a configuration's values, by key. Comparisons ignore them: any two are equal.
#[derive(Clone, Debug, Default)]
pub struct Origins {
    name: String,
    raw: BTreeMap<&'static str, Origin>,
    sections: BTreeMap<&'static str, Origin>,
    numbers: BTreeMap<&'static str, String>,
}

impl Origins {
    /// Creates the origins of the values and sections of a file called `name`. Numbers are kept with their
    /// text.
    pub(crate) fn new(
        name: &str,
        raw: impl Iterator<Item = (&'static str, Origin, Option<String>)>,
        sections: BTreeMap<&'static str, Origin>,
    ) -> Self {
        let mut origins = Origins { name: name.to_owned(), sections, ..Origins::default() };
        for (key, origin, number) in raw {
            origins.raw.insert(key, origin);
            origins.numbers.extend(number.map(|number| (key, number)));
        }
        origins
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns `value` of `key` as TOML. A number that equals the written one keeps its written text.
    #[must_use]
    pub fn as_written(&self, key: &str, value: &Value) -> String {
        let Value::Float(number) = value else { return value.to_string() };
        let raw = self.numbers.get(key).filter(|text| text.parse() == Ok(*number));
        raw.cloned().unwrap_or_else(|| value.to_string())
    }

    /// Returns whether `key` (`section.key`) was written; otherwise it has its default.
    #[must_use]
    pub fn is_set(&self, key: &str) -> bool {
        self.raw.contains_key(key)
    }

    /// Returns where the section `name` was written in the file, even if it has no keys.
    #[must_use]
    pub fn of_section(&self, name: &str) -> Option<&Origin> {
        self.sections.get(name)
    }

    /// Returns where `key` (`section.key`) was written; for a default, the file as a whole.
    #[must_use]
    pub fn find(&self, key: &str) -> Origin {
        let file = || Origin::File { name: self.name.clone(), line: None };
        self.raw.get(key).cloned().unwrap_or_else(file)
    }
}

impl PartialEq for Origins {
    fn eq(&self, _: &Origins) -> bool {
        true
    }
}
