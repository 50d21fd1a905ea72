//! Parsing of a configuration file's text into entries with line numbers.

use std::borrow::Cow;
use std::collections::BTreeMap;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::entry::{Entry, shorten};
use crate::error::{Error, Result};
use crate::origin::Origin;
use crate::table::Table;
use crate::value::Value;

/// The text of a configuration, with its name for messages.
#[derive(Clone, Copy, Debug)]
pub struct Document<'a> {
    /// The text, in TOML.
    pub text: &'a str,
    /// Name of the file, for messages.
    pub name: &'a str,
    /// Whether lines of the text are lines of the file, so that messages name them. False for text generated
    /// from other files.
    pub has_lines: bool,
}

impl Document<'_> {
    fn origin(&self, offset: usize) -> Origin {
        let line = self.has_lines.then(|| line_at(self.text, offset));
        Origin::File { name: self.name.to_owned(), line }
    }
}

/// The entries and sections of a file, with their origins.
#[derive(Debug, Default)]
pub(crate) struct Written {
    pub(crate) entries: BTreeMap<&'static str, Entry>,
    pub(crate) sections: BTreeMap<&'static str, Origin>,
}

/// Parses a configuration.
///
/// # Errors
/// Text that is not TOML, names that do not exist.
pub(crate) fn parse(table: &Table, source: Document<'_>) -> Result<Written> {
    let file = |offset| source.origin(offset);
    let document = DeTable::parse(source.text).map_err(|error| Error::Syntax {
        origin: file(error.span().map_or(0, |span| span.start)),
        message: one_line(error.message()),
    })?;
    let mut all = Written::default();
    for (section, value) in in_order(document.get_ref()) {
        let origin = file(section.span().start);
        let written = match (table.section(section.get_ref()), value.get_ref()) {
            (Some(name), DeValue::Table(written)) => {
                all.sections.insert(name, origin);
                written
            }
            (Some(section), _) => return Err(Error::NotASection { origin, section }),
            (None, DeValue::Table(_)) => return Err(table.unknown_section(origin, section.get_ref())),
            (None, _) => return Err(table.unknown_key(origin, section.get_ref())),
        };
        section_entries(table, source, section.get_ref(), written, &mut all.entries)?;
    }
    Ok(all)
}

/// Adds the entries of the section `section`, and of sections nested in it, to `entries`.
fn section_entries(
    table: &Table,
    source: Document<'_>,
    section: &str,
    written: &DeTable<'_>,
    entries: &mut BTreeMap<&'static str, Entry>,
) -> Result<()> {
    for (key, value) in in_order(written) {
        let origin = source.origin(key.span().start);
        let path = format!("{section}.{}", key.get_ref());
        if table.section(&path).is_some() {
            let DeValue::Table(inner) = value.get_ref() else {
                return Err(table.unknown_key(origin, &path));
            };
            section_entries(table, source, &path, inner, entries)?;
            continue;
        }
        let Some(key) = table.find(&path) else { return Err(table.unknown_key(origin, &path)) };
        let shown = shorten(source.text.get(value.span()).unwrap_or_default());
        entries.insert(key.path, Entry { value: Value::from_toml(value.get_ref()), shown, origin });
    }
    Ok(())
}

/// Returns the entries of a table in file order, so that the first mistake is reported.
fn in_order<'t, 'i>(table: &'t DeTable<'i>) -> Vec<(&'t Spanned<Cow<'i, str>>, &'t Spanned<DeValue<'i>>)> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    entries
}

/// Returns the line number, from 1, of a byte offset.
fn line_at(text: &str, offset: usize) -> usize {
    text.bytes().take(offset).filter(|byte| *byte == b'\n').count() + 1
}

fn one_line(text: &str) -> String {
    text.lines().map(str::trim).collect::<Vec<_>>().join("; ")
}
