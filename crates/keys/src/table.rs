//! The table of all keys, in the order of configuration files.

use crate::entry::shorten;
use crate::error::Error;
use crate::key::{Key, Only};
use crate::origin::Origin;

/// All existing keys, section by section. Keys for different values of another key may share a path.
#[derive(Clone, Debug)]
pub struct Table {
    keys: Vec<Key>,
    foreign: &'static [&'static [ForeignName]],
}

/// A name of a key or section in another tool, and its equivalent here: a key, a section, or a sentence of
/// advice.
pub type ForeignName = (&'static str, &'static str);

/// Minimum similarity, from 0 to 1, of a name suggested from a few.
const NEAR: f64 = 0.55;
/// Number of letters of a name for each letter that may be wrong, and the maximum number of wrong letters.
const PER_MISTAKE: usize = 5;
const MOST_MISTAKES: usize = 3;
/// Minimum letters of an abbreviated word.
const FEWEST_LETTERS: usize = 3;
/// Maximum letters of a name that is compared with others.
const MOST_LETTERS: usize = 80;
/// Maximum number of sections for which keys of one name are suggested.
const MOST_SECTIONS: usize = 4;

impl Table {
    /// Creates a table of `keys`, in which the keys of a section are adjacent.
    #[must_use]
    pub fn new(keys: Vec<Key>) -> Self {
        Self { keys, foreign: &[] }
    }

    /// Adds names of keys and sections in other tools.
    #[must_use]
    pub fn with_foreign(self, foreign: &'static [&'static [ForeignName]]) -> Self {
        Self { foreign, ..self }
    }

    /// Returns all keys.
    #[must_use]
    pub fn keys(&self) -> &[Key] {
        &self.keys
    }

    pub(crate) fn find(&self, path: &str) -> Option<&Key> {
        self.keys.iter().find(|key| key.path == path)
    }

    pub(crate) fn section(&self, name: &str) -> Option<&'static str> {
        self.keys.iter().map(|key| key.section).find(|section| *section == name)
    }

    /// Returns the conditions on other keys of all keys with this path.
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
        // Command lines of other tools have dashes.
        let last = &*last.replace('-', "_");
        let found = |suggestion: &'static str| vec![suggestion];
        let whole = || self.foreign(path).map(found);
        let of_section =
            || if self.section(section).is_none() { self.foreign_section(section) } else { None };
        let foreign = || self.foreign(last).or_else(of_section).map(found);
        // Advice in words tells of a name with another meaning here.
        let in_words = || self.foreign(last).filter(|advice| advice.contains(' ')).map(found);
        // The right name in the wrong section is a better suggestion than any similar spelling.
        let suggestions = whole().or_else(in_words).or_else(|| self.moved(last)).or_else(foreign);
        let suggestions = suggestions.or_else(|| self.misspelt(section, path, last).map(found));
        let hint = hint(&suggestions.unwrap_or_default());
        Error::Unknown { origin, what: "key", name: shorten(path), hint }
    }

    /// Returns the paths of keys with this name in any section, if they are few.
    fn moved(&self, name: &str) -> Option<Vec<&'static str>> {
        let mut paths = Vec::new();
        for key in self.keys.iter().filter(|key| key.name == name) {
            if !paths.contains(&key.path) {
                paths.push(key.path);
            }
        }
        (1..=MOST_SECTIONS).contains(&paths.len()).then_some(paths)
    }

    /// Returns the path of the key that a misspelt path means: in the named section, or in any if the section
    /// is misspelt too.
    fn misspelt(&self, section: &str, path: &str, name: &str) -> Option<&'static str> {
        let of_section = self.keys.iter().filter(|key| section.is_empty() || key.section == section);
        let own = near_spelling(name, of_section.map(|key| (key.name, key.path)));
        let is_section = self.section(section).is_some() || section.is_empty();
        let all = || near_spelling(path, self.keys.iter().map(|key| (key.path, key.path)));
        own.or_else(|| if is_section { None } else { all() })
    }

    /// Creates the error for a section that does not exist.
    pub(crate) fn unknown_section(&self, origin: Origin, section: &str) -> Error {
        let sections = self.keys.iter().map(|key| (key.section, key.section));
        let near = near_spelling(section, sections).map(|near| format!("[{near}]"));
        let suggestion = self.foreign_section(section).map(str::to_owned).or(near);
        let hint = hint(suggestion.as_deref().as_slice());
        Error::Unknown { origin, what: "section", name: format!("[{}]", shorten(section)), hint }
    }

    /// Returns the equivalent of another tool's section.
    fn foreign_section(&self, name: &str) -> Option<&'static str> {
        self.foreign(&format!("[{name}]")).or_else(|| self.foreign(name))
    }

    /// Returns the equivalent of another tool's key or section.
    fn foreign(&self, name: &str) -> Option<&'static str> {
        self.foreign.iter().copied().flatten().find(|(foreign, _)| *foreign == name).map(|(_, here)| *here)
    }
}

/// Returns the end of an error's sentence: suggested names, or a sentence of advice.
fn hint(suggestions: &[&str]) -> String {
    match suggestions {
        [] => String::new(),
        [advice] if advice.contains(' ') => format!(": {advice}"),
        [name] => format!(": did you mean {name}?"),
        [first @ .., last] => format!(": did you mean {} or {last}?", first.join(", ")),
    }
}

/// Returns the target of the name that `name` misspells, by a few wrong letters or abbreviated words. Merely
/// similar names are not considered, because they may mean something else.
fn near_spelling<T>(name: &str, names: impl Iterator<Item = (&'static str, T)>) -> Option<T> {
    let letters = name.chars().count();
    if letters > MOST_LETTERS {
        return None;
    }
    let mistakes = (letters / PER_MISTAKE).clamp(1, MOST_MISTAKES);
    let distance = |other: &str| match is_cut_short(name, other) {
        true => 0,
        false => strsim::damerau_levenshtein(name, other),
    };
    let all = names.map(|(other, target)| (distance(other), target));
    all.filter(|(distance, _)| *distance <= mistakes).min_by_key(|(distance, _)| *distance).map(|(_, t)| t)
}

/// Returns whether `name` abbreviates `other`: each of its words begins the word at the same position.
fn is_cut_short(name: &str, other: &str) -> bool {
    let [words, whole] = [name, other].map(|text| text.split('_').collect::<Vec<_>>());
    let begins = |(word, whole): (&&str, &&str)| whole.starts_with(word) && word.len() >= FEWEST_LETTERS;
    words.len() == whole.len() && words.iter().zip(&whole).all(begins)
}

/// Returns the most similar of `names`, as an example; `None` if none is similar.
pub fn nearest<'n>(name: &str, names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    // The comparison takes time in proportion to the product of the lengths, so long names are cut.
    let name: String = name.chars().take(80).collect();
    let similarity = |other: &str| strsim::normalized_damerau_levenshtein(&name, other);
    let best = names.max_by(|a, b| similarity(a).total_cmp(&similarity(b)))?;
    (similarity(best) >= NEAR).then_some(best)
}
