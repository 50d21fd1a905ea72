//! All keys that exist, in the order of the file.

use crate::entry::shorten;
use crate::error::Error;
use crate::key::{Key, Only};
use crate::origin::Origin;

/// All keys that exist, section by section. Several kinds may have a key of one path.
#[derive(Clone, Debug)]
pub struct Table {
    keys: Vec<Key>,
}

impl Table {
    /// A table of `keys`, of which those of a section follow each other.
    #[must_use]
    pub fn new(keys: Vec<Key>) -> Self {
        Self { keys }
    }

    /// All keys.
    #[must_use]
    pub fn keys(&self) -> &[Key] {
        &self.keys
    }

    /// Returns the first key of a path.
    pub(crate) fn find(&self, path: &str) -> Option<&Key> {
        self.keys.iter().find(|key| key.path == path)
    }

    pub(crate) fn section(&self, name: &str) -> Option<&'static str> {
        self.keys.iter().map(|key| key.section).find(|section| *section == name)
    }

    /// All values of other keys that the keys of this path belong to.
    pub(crate) fn kinds(&self, path: &str) -> Vec<Only> {
        self.keys.iter().filter(|key| key.path == path).filter_map(|key| key.only).collect()
    }

    /// The error for a path that does not exist.
    pub(crate) fn unknown_key(&self, origin: Origin, path: &str) -> Error {
        for key in &self.keys {
            if let Some(renamed) = key.renamed.filter(|renamed| renamed.from == path) {
                return Error::Renamed { origin, old: renamed.from, new: key.path, how: renamed.how };
            }
        }
        let last = path.rsplit('.').next().unwrap_or(path);
        // The right name in the wrong section is nearer than any spelling.
        let moved = self.keys.iter().find(|key| key.name == last).map(|key| key.path);
        let nearest = moved.unwrap_or_else(|| nearest(path, self.keys.iter().map(|key| key.path)));
        Error::Unknown { origin, what: "key", name: shorten(path), nearest: nearest.to_owned() }
    }

    /// The error for a section that does not exist.
    pub(crate) fn unknown_section(&self, origin: Origin, section: &str) -> Error {
        let nearest = nearest(section, self.keys.iter().map(|key| key.section));
        Error::Unknown {
            origin,
            what: "section",
            name: format!("[{}]", shorten(section)),
            nearest: format!("[{nearest}]"),
        }
    }
}

/// Returns the most similar of some names.
pub(crate) fn nearest<'n>(name: &str, names: impl Iterator<Item = &'n str>) -> &'n str {
    // The comparison takes the product of the lengths: a long name is cut.
    let name: String = name.chars().take(80).collect();
    let similarity = |other: &str| strsim::normalized_damerau_levenshtein(&name, other);
    names.max_by(|a, b| similarity(a).total_cmp(&similarity(b))).unwrap_or_default()
}
