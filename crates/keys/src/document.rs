//! Parsing of a configuration file's text into entries with their lines.

use std::borrow::Cow;
use std::collections::BTreeMap;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::entry::{Entry, shorten};
use crate::error::{Error, Result};
use crate::origin::Origin;
use crate::table::Table;
use crate::value::Value;

/// Parses the text of the file called `name`.
///
/// # Errors
/// Text that is not TOML, names that do not exist.
pub(crate) fn entries(table: &Table, text: &str, name: &str) -> Result<BTreeMap<&'static str, Entry>> {
    let file = |offset| Origin::File { name: name.to_owned(), line: Some(line_at(text, offset)) };
    let document = DeTable::parse(text).map_err(|error| Error::Syntax {
        origin: file(error.span().map_or(0, |span| span.start)),
        message: one_line(error.message()),
    })?;
    let mut entries = BTreeMap::new();
    for (section, value) in in_order(document.get_ref()) {
        let origin = file(section.span().start);
        let written = match (table.section(section.get_ref()), value.get_ref()) {
            (Some(_), DeValue::Table(written)) => written,
            (Some(section), _) => return Err(Error::NotASection { origin, section }),
            (None, DeValue::Table(_)) => return Err(table.unknown_section(origin, section.get_ref())),
            (None, _) => return Err(table.unknown_key(origin, section.get_ref())),
        };
        section_entries(table, (text, name), section.get_ref(), written, &mut entries)?;
    }
    Ok(entries)
}

/// Adds the entries of the section called `section`, and of sections within it, to `entries`.
fn section_entries(
    table: &Table,
    (text, name): (&str, &str),
    section: &str,
    written: &DeTable<'_>,
    entries: &mut BTreeMap<&'static str, Entry>,
) -> Result<()> {
    for (key, value) in in_order(written) {
        let origin = Origin::File { name: name.to_owned(), line: Some(line_at(text, key.span().start)) };
        let path = format!("{section}.{}", key.get_ref());
        if table.section(&path).is_some() {
            let DeValue::Table(inner) = value.get_ref() else {
                return Err(table.unknown_key(origin, &path));
            };
            section_entries(table, (text, name), &path, inner, entries)?;
            continue;
        }
        let Some(key) = table.find(&path) else { return Err(table.unknown_key(origin, &path)) };
        let shown = shorten(text.get(value.span()).unwrap_or_default());
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

/// Returns the line of a byte offset, from 1.
fn line_at(text: &str, offset: usize) -> usize {
    text.bytes().take(offset).filter(|byte| *byte == b'\n').count() + 1
}

fn one_line(text: &str) -> String {
    text.lines().map(str::trim).collect::<Vec<_>>().join("; ")
}
