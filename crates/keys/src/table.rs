//! The table of all keys, in the order of the file.

use crate::entry::shorten;
use crate::error::Error;
use crate::key::{Key, Only};
use crate::origin::Origin;

/// All existing keys, section by section. Several kinds may have a key with the same path.
#[derive(Clone, Debug)]
pub struct Table {
    keys: Vec<Key>,
    foreign: &'static [(&'static str, &'static str)],
}

/// Smallest similarity of a suggested name.
const NEAR: f64 = 0.55;

impl Table {
    /// Creates a table of `keys`; the keys of a section must be adjacent.
    #[must_use]
    pub fn new(keys: Vec<Key>) -> Self {
        Self { keys, foreign: &[] }
    }

    /// Adds names of keys and sections in other tools, each with the corresponding key or a sentence on what
    /// to use.
    #[must_use]
    pub fn with_foreign(self, foreign: &'static [(&'static str, &'static str)]) -> Self {
        Self { foreign, ..self }
    }

    /// All keys.
    #[must_use]
    pub fn keys(&self) -> &[Key] {
        &self.keys
    }

    /// Returns the first key with this path.
    pub(crate) fn find(&self, path: &str) -> Option<&Key> {
        self.keys.iter().find(|key| key.path == path)
    }

    pub(crate) fn section(&self, name: &str) -> Option<&'static str> {
        self.keys.iter().map(|key| key.section).find(|section| *section == name)
    }

    /// Returns all conditions on other keys to which the keys with this path belong.
    pub(crate) fn kinds(&self, path: &str) -> Vec<Only> {
        self.keys.iter().filter(|key| key.path == path).filter_map(|key| key.only).collect()
    }

    /// Creates the error for a path that does not exist.
    pub(crate) fn unknown_key(&self, origin: Origin, path: &str) -> Error {
        for key in &self.keys {
            if let Some(renamed) = key.renamed.filter(|renamed| renamed.from == path) {
                return Error::Renamed { origin, old: renamed.from, new: key.path, how: renamed.how };
            }
        }
        let (section, last) = path.rsplit_once('.').unwrap_or(("", path));
        // The right name in the wrong section is a better suggestion than any similar spelling.
        let whole = self.foreign(path);
        let moved = self.keys.iter().find(|key| key.name == last).map(|key| key.path);
        let foreign = || self.foreign(last).or_else(|| self.foreign_section(section));
        let near = || {
            let of_section = self.keys.iter().filter(|key| section.is_empty() || key.section == section);
            let name = nearest(last, of_section.map(|key| key.name))?;
            self.keys.iter().find(|key| key.name == name).map(|key| key.path)
        };
        // If the section is misspelt, the whole path is compared.
        let spelt = || nearest(path, self.keys.iter().map(|key| key.path));
        let is_section = self.section(section).is_some() || section.is_empty();
        let suggestion = whole.or(moved).or_else(foreign).or_else(near);
        let suggestion = suggestion.or_else(|| if is_section { None } else { spelt() });
        Error::Unknown { origin, what: "key", name: shorten(path), hint: hint(suggestion) }
    }

    /// Creates the error for a section that does not exist.
    pub(crate) fn unknown_section(&self, origin: Origin, section: &str) -> Error {
        let near = nearest(section, self.keys.iter().map(|key| key.section)).map(|near| format!("[{near}]"));
        let suggestion = self.foreign_section(section).map(str::to_owned).or(near);
        let (name, hint) = (format!("[{}]", shorten(section)), hint(suggestion.as_deref()));
        Error::Unknown { origin, what: "section", name, hint }
    }

    /// Returns the section, key or sentence for a section of another tool.
    fn foreign_section(&self, name: &str) -> Option<&'static str> {
        self.foreign(&format!("[{name}]")).or_else(|| self.foreign(name))
    }

    /// Returns the key or sentence for a name of another tool.
    fn foreign(&self, name: &str) -> Option<&'static str> {
        self.foreign.iter().find(|(foreign, _)| *foreign == name).map(|(_, here)| *here)
    }
}

/// Returns the end of an error's sentence: a suggested name, or advice in words.
fn hint(suggestion: Option<&str>) -> String {
    match suggestion {
        None => String::new(),
        Some(advice) if advice.contains(' ') => format!(": {advice}"),
        Some(name) => format!(": did you mean {name}?"),
    }
}

/// Returns the most similar of some names, if any is similar.
pub fn nearest<'n>(name: &str, names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    // The comparison takes time in proportion to the product of the lengths, so long names are cut.
    let name: String = name.chars().take(80).collect();
    let similarity = |other: &str| strsim::normalized_damerau_levenshtein(&name, other);
    let best = names.max_by(|a, b| similarity(a).total_cmp(&similarity(b)))?;
    (similarity(best) >= NEAR).then_some(best)
}
