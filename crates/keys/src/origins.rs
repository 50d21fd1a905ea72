//! Where each value of a configuration was written, for errors that are found after it was resolved.

use std::collections::BTreeMap;

use crate::origin::Origin;

/// The origins of a configuration's values, by key. They are not part of what it says: any two compare equal.
#[derive(Clone, Debug, Default)]
pub struct Origins {
    name: String,
    given: BTreeMap<&'static str, Origin>,
}

impl Origins {
    pub(crate) fn new(name: &str, given: impl Iterator<Item = (&'static str, Origin)>) -> Self {
        Origins { name: name.to_owned(), given: given.collect() }
    }

    /// Returns where `key` (`section.key`) was written; the file as a whole if it has its default.
    #[must_use]
    pub fn of(&self, key: &str) -> Origin {
        let file = || Origin::File { name: self.name.clone(), line: None };
        self.given.get(key).cloned().unwrap_or_else(file)
    }
}

impl PartialEq for Origins {
    fn eq(&self, _: &Origins) -> bool {
        true
    }
}
