//! The values that were given, each with its place: the file's, then the command line's over them.

use crate::error::{ConfigError, Place};
use crate::key::{Default, Key, Takes};
use crate::keys::KEYS;
use crate::places::Places;
use crate::value::Value;
use std::collections::BTreeMap;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A value that someone wrote.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) value: Value,
    /// The value as it is written, for messages.
    pub(crate) shown: String,
    pub(crate) place: Place,
}

/// What the file and the command line say, before anything is checked but names.
#[derive(Debug)]
pub(crate) struct Raw {
    /// The file as it was named.
    pub(crate) name: String,
    entries: BTreeMap<&'static str, Entry>,
}

impl Raw {
    /// Reads a file's text and puts the overrides over it, the last of a key winning.
    pub(crate) fn parse(text: &str, name: &str, overrides: &[String]) -> Result<Self, ConfigError> {
        let mut raw = Self { name: name.to_owned(), entries: BTreeMap::new() };
        let file = |offset| Place::File { name: name.to_owned(), line: Some(line_at(text, offset)) };
        let document = DeTable::parse(text).map_err(|error| ConfigError::Syntax {
            place: file(error.span().map_or(0, |span| span.start)),
            message: one_line(error.message()),
        })?;
        for (section, value) in in_order(document.get_ref()) {
            let place = file(section.span().start);
            let known = KEYS.iter().map(|key| key.section).find(|known| known == section.get_ref());
            let table = match (known, value.get_ref()) {
                (Some(_), DeValue::Table(table)) => table,
                (Some(section), _) => return Err(ConfigError::NotASection { place, section }),
                (None, DeValue::Table(_)) => return Err(unknown_section(place, section.get_ref())),
                (None, _) => return Err(unknown_key(place, section.get_ref())),
            };
            for (key, value) in in_order(table) {
                let place = file(key.span().start);
                let path = format!("{}.{}", section.get_ref(), key.get_ref());
                let Some(key) = find(&path) else { return Err(unknown_key(place, &path)) };
                let shown = shorten(text.get(value.span()).unwrap_or_default());
                raw.entries
                    .insert(key.path, Entry { value: Value::from_toml(value.get_ref()), shown, place });
            }
        }
        for argument in overrides {
            let (key, entry) = parse_override(argument)?;
            raw.entries.insert(key.path, entry);
        }
        Ok(raw)
    }

    /// The value that was given for `key`, if any.
    pub(crate) fn given(&self, key: &Key) -> Option<&Entry> {
        self.entries.get(key.path)
    }

    /// Forgets the value that was given for `key`.
    pub(crate) fn forget(&mut self, key: &Key) {
        self.entries.remove(key.path);
    }

    /// The value of `key`: given or its default, if that is a fixed one.
    pub(crate) fn value(&self, key: &Key) -> Option<Entry> {
        self.given(key).cloned().or_else(|| match key.default {
            Default::Literal(text) => {
                let value = DeValue::parse(text).ok()?;
                let place = Place::File { name: self.name.clone(), line: None };
                Some(Entry { value: Value::from_toml(value.get_ref()), shown: text.to_owned(), place })
            }
            Default::Derived(_) => None,
        })
    }

    /// Where every given value was written.
    pub(crate) fn places(&self) -> Places {
        Places::new(&self.name, self.entries.iter().map(|(key, entry)| (*key, entry.place.clone())))
    }

    /// Where to look when these keys' values do not go together: the command line before the file, and the
    /// file as a whole if none of them is written.
    pub(crate) fn place(&self, keys: &[&Key]) -> Place {
        let places = || keys.iter().filter_map(|key| self.given(key)).map(|entry| &entry.place);
        let overridden = places().find(|place| matches!(place, Place::Override { .. }));
        let none = || Place::File { name: self.name.clone(), line: None };
        overridden.or_else(|| places().next()).cloned().unwrap_or_else(none)
    }
}

/// The entries of a table as they stand in the file, so that the first mistake is the one reported.
fn in_order<'t, 'i>(
    table: &'t DeTable<'i>,
) -> Vec<(&'t Spanned<std::borrow::Cow<'i, str>>, &'t Spanned<DeValue<'i>>)> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    entries
}

fn parse_override(argument: &str) -> Result<(&'static Key, Entry), ConfigError> {
    let place = Place::Override { argument: shorten(argument) };
    let Some((path, text)) = argument.split_once('=').map(|(path, text)| (path.trim(), text.trim())) else {
        return Err(ConfigError::BadOverride { place });
    };
    if path.is_empty() {
        return Err(ConfigError::BadOverride { place });
    }
    let Some(key) = find(path) else { return Err(unknown_key(place, path)) };
    if text.is_empty() && !matches!(key.takes, Takes::Text) {
        return Err(ConfigError::BadOverride { place });
    }
    // A shell has taken the quotes of a string away: what is not TOML is a string, and so is all that a key of
    // strings is given without quotes.
    let string = match key.takes {
        Takes::Text | Takes::Choice(_) => !text.starts_with(['"', '\'']),
        Takes::ChoiceOrIntegers(..) => !text.starts_with(['"', '\'', '[']),
        _ => false,
    };
    let parsed = if string { None } else { DeValue::parse(text).ok() };
    let value =
        parsed.map_or_else(|| Value::Text(text.to_owned()), |value| Value::from_toml(value.get_ref()));
    let shown = match &value {
        Value::Text(_) => shorten(&value.to_string()),
        _ => shorten(text),
    };
    Ok((key, Entry { value, shown, place }))
}

fn find(path: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.path == path).copied()
}

fn unknown_key(place: Place, path: &str) -> ConfigError {
    let last = path.rsplit('.').next().unwrap_or(path);
    // The right name in the wrong section is nearer than any spelling.
    let moved = KEYS.iter().find(|key| key.name == last).map(|key| key.path);
    let nearest = moved.unwrap_or_else(|| nearest(path, KEYS.iter().map(|key| key.path)));
    ConfigError::Unknown { place, what: "key", name: shorten(path), nearest: nearest.to_owned() }
}

fn unknown_section(place: Place, section: &str) -> ConfigError {
    let nearest = nearest(section, KEYS.iter().map(|key| key.section));
    ConfigError::Unknown {
        place,
        what: "section",
        name: format!("[{}]", shorten(section)),
        nearest: format!("[{nearest}]"),
    }
}

/// The most similar of some names.
pub(crate) fn nearest<'n>(name: &str, names: impl Iterator<Item = &'n str>) -> &'n str {
    // What is compared is bounded, as the comparison takes the product of the lengths.
    let name: String = name.chars().take(80).collect();
    let similarity = |other: &str| strsim::normalized_damerau_levenshtein(&name, other);
    names.max_by(|a, b| similarity(a).total_cmp(&similarity(b))).unwrap_or_default()
}

/// The line of a byte offset, from 1.
fn line_at(text: &str, offset: usize) -> usize {
    text.bytes().take(offset).filter(|byte| *byte == b'\n').count() + 1
}

fn one_line(text: &str) -> String {
    text.lines().map(str::trim).collect::<Vec<_>>().join("; ")
}

/// A value for a message: on one line and of a readable length.
fn shorten(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}
