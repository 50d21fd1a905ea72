//! Parses the statements of ARCHITECTURE.md from its tables and lists.

use std::collections::{BTreeMap, BTreeSet};

/// Heading of the table of crates.
pub(crate) const MAP: &str = "The map";
/// Heading of the table of words that crates never contain.
pub(crate) const ABSENT: &str = "What is absent";

/// A row of a table: the name in its first cell, and the text after it.
pub(crate) struct Row<'a> {
    pub(crate) name: &'a str,
    pub(crate) rest: &'a str,
}

/// Returns the lines below the heading `## title`, up to the next heading of that level.
pub(crate) fn section<'a>(document: &'a str, title: &str) -> impl Iterator<Item = &'a str> {
    let mut lines = document.lines();
    lines.find(|line| line.strip_prefix("## ") == Some(title));
    lines.take_while(|line| !line.starts_with("## "))
}

/// Returns the rows of a section's tables whose first cell is a name in backticks.
pub(crate) fn rows<'a>(document: &'a str, title: &str) -> Vec<Row<'a>> {
    let row = |line: &'a str| {
        let (name, rest) = line.strip_prefix("| `")?.split_once("` |")?;
        Some(Row { name, rest })
    };
    section(document, title).filter_map(row).collect()
}

/// Returns the texts in backticks.
pub(crate) fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Parses the lines `a → b, c` of "The arrows".
pub(crate) fn arrows(document: &str) -> BTreeMap<String, BTreeSet<String>> {
    let arrow = |line: &str| {
        let (from, to) = line.split_once('→')?;
        let to = to.split(',').map(|name| name.trim().to_owned()).filter(|name| !name.is_empty());
        Some((from.trim().to_owned(), to.collect()))
    };
    section(document, "The arrows").filter(|line| line.starts_with("    ")).filter_map(arrow).collect()
}

/// Returns the files listed in "Where `unsafe` is".
pub(crate) fn unsafe_files(document: &str) -> BTreeSet<&str> {
    section(document, "Where `unsafe` is")
        .filter_map(|line| quoted(line.strip_prefix("* ")?).next())
        .collect()
}

/// Returns all paths in the document, relative to the root. Paths in a row of "The map" are relative to that
/// crate's sources.
pub(crate) fn paths(document: &str, sources_of: impl Fn(&str) -> String) -> BTreeSet<String> {
    let is_path = |token: &&str| {
        let ends = [".rs", ".md", ".toml", ".cu"].iter().any(|end| token.ends_with(end));
        (token.contains('/') || ends) && !token.contains([' ', '→'])
    };
    let mut paths = BTreeSet::new();
    for row in rows(document, MAP) {
        let sources = sources_of(row.name);
        paths.extend(quoted(row.rest).filter(is_path).map(|path| format!("{sources}/{path}")));
    }
    let beside_rows = section(document, MAP).filter(|line| !line.starts_with("| `"));
    let elsewhere = outside(document, MAP).chain(beside_rows);
    paths.extend(elsewhere.flat_map(quoted).filter(is_path).map(str::to_owned));
    paths
}

/// Returns the names of types, functions and constants, such as `GradientSink` and `Plan::statistics`.
pub(crate) fn names(document: &str) -> BTreeSet<&str> {
    let is_name = |token: &&str| {
        let first = token.starts_with(|first: char| first.is_ascii_uppercase());
        let plain = token.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == ':');
        plain && (token.contains("::") || first && token.contains(|c: char| c.is_ascii_lowercase()))
    };
    outside(document, ABSENT).flat_map(quoted).filter(is_name).collect()
}

/// Returns the lines outside the section with the heading `## title`.
fn outside<'a>(document: &'a str, title: &str) -> impl Iterator<Item = &'a str> {
    let mut inside = false;
    document.lines().filter(move |line| {
        if let Some(heading) = line.strip_prefix("## ") {
            inside = heading == title;
        }
        !inside
    })
}
