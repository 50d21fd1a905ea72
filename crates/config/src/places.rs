//! Where each value of a configuration was written, for what is found wrong after it was resolved.

use std::collections::BTreeMap;

use crate::error::Place;

/// Places by key. It is not part of what a configuration says: any two are equal.
#[derive(Clone, Debug, Default)]
pub struct Places {
    name: String,
    given: BTreeMap<&'static str, Place>,
}

impl Places {
    pub(crate) fn new(name: &str, given: impl Iterator<Item = (&'static str, Place)>) -> Self {
        Places { name: name.to_owned(), given: given.collect() }
    }

    /// Where `key` (`section.key`) was given; of one that has its default, the file.
    #[must_use]
    pub fn of(&self, key: &str) -> Place {
        let file = || Place::File { name: self.name.clone(), line: None };
        self.given.get(key).cloned().unwrap_or_else(file)
    }
}

impl PartialEq for Places {
    fn eq(&self, _: &Places) -> bool {
        true
    }
}
