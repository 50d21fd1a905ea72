//! Configured values with their origins: values of the file, overridden by the command line.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use toml::de::DeValue;

use crate::codec::{self, Reading};
use crate::document::{self, Document, Written};
use crate::entry::Entry;
use crate::error::{Error, Result};
use crate::key::{Default, Key, Only};
use crate::origin::Origin;
use crate::origins::Origins;
use crate::overrides;
use crate::table::{Table, nearest};
use crate::takes::{Takes, quoted};
use crate::value::Value;

/// Values of a file and the command line. Names are checked, and keys that do not apply are removed.
#[derive(Clone, Debug)]
pub struct RawValues {
    table: Table,
    name: String,
    directory: PathBuf,
    entries: BTreeMap<&'static str, Entry>,
    sections: BTreeMap<&'static str, Origin>,
}

/// A value for a key that another file implies.
#[derive(Clone, Debug, PartialEq)]
pub struct Implied {
    /// Path of the key, `section.key`.
    pub path: String,
    /// Value of the key.
    pub value: Value,
    /// The file that implies the value.
    pub file: String,
}

impl RawValues {
    /// Parses the text of the file called `name` in the absolute `directory`, then applies the overrides
    /// `set`, arguments of `--set`. The last override of a key wins.
    ///
    /// # Errors
    /// Text that is not TOML, names that do not exist, keys that do not apply.
    pub fn parse(table: &Table, text: &str, name: &str, directory: &Path, set: &[String]) -> Result<Self> {
        let document = Document { text, name, has_lines: true };
        Self::parse_implied(table, document, directory, set, |_| Ok(Vec::new()))
    }

    /// Parses as [`RawValues::parse`] does, and adds values for missing keys that `imply` derives from the
    /// other values.
    ///
    /// # Errors
    /// Errors of [`RawValues::parse`] and of `imply`; an implied value whose key does not exist.
    pub fn parse_implied(
        table: &Table,
        document: Document<'_>,
        directory: &Path,
        set: &[String],
        imply: impl FnOnce(&Self) -> Result<Vec<Implied>>,
    ) -> Result<Self> {
        let Written { mut entries, sections } = document::parse(table, document)?;
        for argument in set {
            let (path, entry) = overrides::entry(table, argument)?;
            entries.insert(path, entry);
        }
        let name = document.name.to_owned();
        let directory = directory.to_path_buf();
        let mut raw = Self { table: table.clone(), name, directory, entries, sections };
        for Implied { path, value, file } in imply(&raw)? {
            let origin = Origin::File { name: file, line: None };
            let Some(key) = table.find(&path) else { return Err(table.unknown_key(origin, &path)) };
            raw.entries.entry(key.path).or_insert(Entry { shown: value.to_string(), value, origin });
        }
        raw.sift()?;
        Ok(raw)
    }

    /// Replaces the origins of these values, which were parsed from a resolved text, by `origins`. Errors
    /// then name what the user wrote, not lines of the resolved text.
    #[must_use]
    pub fn written_at(mut self, origins: &Origins) -> Self {
        self.name = origins.name().to_owned();
        for (path, entry) in &mut self.entries {
            if !entry.origin.is_override() {
                entry.origin = origins.find(path);
            }
        }
        self
    }

    /// Returns whether the key at `path` was written.
    #[must_use]
    pub fn is_set(&self, path: &str) -> bool {
        self.entries.contains_key(path)
    }

    /// Returns whether the key at `path` was written on the command line.
    #[must_use]
    pub fn is_override(&self, path: &str) -> bool {
        self.entries.get(path).is_some_and(|entry| entry.origin.is_override())
    }

    /// Returns whether the key at `path` was not written, or has an empty string or list.
    #[must_use]
    pub fn is_empty(&self, path: &str) -> bool {
        self.entries.get(path).is_none_or(|entry| match &entry.value {
            Value::Text(text) => text.is_empty(),
            Value::List(values) => values.is_empty(),
            _ => false,
        })
    }

    /// Returns the absolute directory of the configuration file.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the absolute directory to which a relative path in the key at `path` refers: the current
    /// directory for a value of the command line, else the configuration file's.
    #[must_use]
    pub fn directory_of(&self, path: &str) -> PathBuf {
        let current = self.is_override(path).then(std::env::current_dir);
        current.and_then(std::result::Result::ok).unwrap_or_else(|| self.directory.clone())
    }

    /// Returns the origins of all configured values.
    #[must_use]
    pub fn origins(&self) -> Origins {
        let raw = self.entries.iter().map(|(key, entry)| {
            let text =
                matches!(entry.value, Value::Integer(_) | Value::Float(_)).then(|| entry.shown.clone());
            (*key, entry.origin.clone(), text)
        });
        Origins::new(&self.name, raw, self.sections.clone())
    }

    /// Returns the origin to report if the values of the keys at `paths` contradict each other: the command
    /// line before the file, or the whole file if none was written.
    #[must_use]
    pub fn origin(&self, paths: &[&str]) -> Origin {
        debug_assert!(paths.iter().all(|path| self.table.find(path).is_some()), "{paths:?} are keys");
        let origins = || paths.iter().filter_map(|path| self.entries.get(path)).map(|entry| &entry.origin);
        let overridden = origins().find(|origin| origin.is_override());
        let file = || Origin::File { name: self.name.clone(), line: None };
        overridden.or_else(|| origins().next()).cloned().unwrap_or_else(file)
    }

    /// Creates the error for contradicting values of the keys at `paths`, which `reason` names.
    #[must_use]
    pub fn conflict(&self, paths: &[&str], reason: String) -> Error {
        Error::Conflict { origin: self.origin(paths), reason }
    }

    /// Returns the integer at `path`: the configured value or the default.
    ///
    /// # Errors
    /// A value that the key does not accept.
    pub fn integer(&self, path: &str) -> Result<u64> {
        self.read_at(path, codec::integer)
    }

    /// Returns the flag at `path`: the configured value or the default.
    ///
    /// # Errors
    /// A value that the key does not accept.
    pub fn flag(&self, path: &str) -> Result<bool> {
        self.read_at(path, codec::flag)
    }

    /// Returns the number at `path`: the configured value or the default.
    ///
    /// # Errors
    /// A value that the key does not accept.
    pub fn number(&self, path: &str) -> Result<f64> {
        self.read_at(path, codec::number)
    }

    /// Returns the string or name at `path`: the configured value or the default.
    ///
    /// # Errors
    /// A value that the key does not accept.
    pub fn text(&self, path: &str) -> Result<String> {
        self.read_at(path, |value, takes| match value {
            Value::Text(text) if takes.names().is_empty() || takes.names().contains(&text.as_str()) => {
                Reading::Good(text.clone())
            }
            Value::Text(_) => Reading::OutOfRange,
            _ => Reading::WrongType,
        })
    }

    fn read_at<T>(&self, path: &str, read: fn(&Value, &Takes) -> Reading<T>) -> Result<T> {
        match self.table.find(path) {
            Some(key) => self.read(key, read),
            None => Err(self.table.unknown_key(self.origin(&[]), path)),
        }
    }

    /// Reads the configured or default value of `key` with `read`.
    pub(crate) fn read<T>(&self, key: &Key, read: fn(&Value, &Takes) -> Reading<T>) -> Result<T> {
        read_entry(key, self.entry(key), read)
    }

    /// Reads `value`, a derived default of `key`, with `read`.
    pub(crate) fn read_value<T>(
        &self,
        key: &Key,
        value: Value,
        read: fn(&Value, &Takes) -> Reading<T>,
    ) -> Result<T> {
        read_entry(key, self.unwritten(value), read)
    }

    /// Returns the entry of `key`: the configured one, or its fixed default.
    fn entry(&self, key: &Key) -> Entry {
        if let Some(entry) = self.entries.get(key.path) {
            return entry.clone();
        }
        let parsed = match key.default {
            Default::Literal(text) => DeValue::parse(text).ok(),
            Default::Derived(_) => None,
        };
        self.unwritten(parsed.map_or(Value::Other("nothing"), |value| Value::from_toml(value.get_ref())))
    }

    fn unwritten(&self, value: Value) -> Entry {
        Entry { shown: value.to_string(), value, origin: self.origin(&[]) }
    }

    /// Refuses keys that do not apply. Keys in the file are dropped silently if the command line made them
    /// inapplicable: `--set data.kind=synthetic` must not require an edited file.
    fn sift(&mut self) -> Result<()> {
        let paths: Vec<&'static str> = self.table.keys().iter().map(|key| key.path).collect();
        for path in paths {
            let kinds = self.table.kinds(path);
            let (Some(first), Some(raw)) = (kinds.first(), self.entries.get(path)) else { continue };
            let Some(kind_key) = self.table.find(first.key) else { continue };
            let kind = self.entry(kind_key);
            let in_tables = |only: &Only| {
                let tables = only.or_in.and_then(|tables| self.entries.get(tables));
                tables.is_some_and(|entry| only.allows_in(&entry.value))
            };
            if kinds.iter().any(|only| only.allows(&kind.value) || in_tables(only)) {
                continue;
            }
            // A kind that does not exist is reported later.
            let exists = match (&kind_key.takes, &kind.value) {
                (takes, Value::Text(name)) => takes.names().contains(&name.as_str()),
                (Takes::ChoiceOrIntegers(..), Value::List(_)) => true,
                _ => false,
            };
            if exists && (raw.origin.is_override() || !kind.origin.is_override()) {
                return Err(Error::NotApplicable {
                    origin: raw.origin.clone(),
                    key: path,
                    kind_key: kind_key.path,
                    needed: quoted(&kinds.iter().flat_map(|only| only.is).copied().collect::<Vec<_>>()),
                    kind: kind.shown,
                });
            }
            self.entries.remove(path);
        }
        Ok(())
    }
}

fn read_entry<T>(key: &Key, entry: Entry, read: fn(&Value, &Takes) -> Reading<T>) -> Result<T> {
    let Entry { value, shown, origin } = entry;
    match read(&value, &key.takes) {
        Reading::Good(value) => Ok(value),
        Reading::OutOfRange => {
            let mut allowed = key.takes.to_string();
            if let ([_, _, ..], Value::Text(name)) = (key.takes.names(), &value) {
                let nearest = nearest(name, key.takes.names().iter().copied());
                allowed += &nearest.map_or(String::new(), |name| format!(": did you mean \"{name}\"?"));
            }
            Err(Error::OutOfRange { origin, key: key.path, value: shown, allowed })
        }
        Reading::Refused(reason) => Err(Error::Refused { origin, key: key.path, reason }),
        Reading::WrongType => {
            let mut text = format!("{} {shown}", value.type_name());
            if let (Takes::Texts, Value::Text(_)) = (key.takes, &value) {
                text += &format!(": write [{value}]");
            }
            Err(Error::WrongType { origin, key: key.path, allowed: key.takes.to_string(), value: text })
        }
    }
}
