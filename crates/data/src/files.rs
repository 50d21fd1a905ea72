//! Expands paths and globs to a list of files, in the same order on every machine.

use crate::Error;
use glob::{MatchOptions, Pattern};
use std::collections::HashSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

/// Returns the files matched by paths and globs relative to `base`, sorted by path, each once.
///
/// # Errors
/// There is no pattern, or a glob is invalid or matches no file.
pub fn files(base: &Path, patterns: &[String]) -> Result<Vec<PathBuf>, Error> {
    if patterns.is_empty() {
        return Err(Error::NoPaths);
    }
    let mut all = Vec::new();
    for pattern in patterns {
        all.extend(matching(base, pattern)?);
    }
    Ok(sorted_once(all))
}

/// Returns the files matched by one pattern: at least one, sorted, of any type.
///
/// An existing path is used literally, even if it contains `*`, `?` or `[`. Otherwise these make it a glob,
/// in which `**` spans directories. As in a shell, a leading dot must be written explicitly. A glob never
/// matches a name that is not UTF-8.
pub(crate) fn matching(base: &Path, pattern: &str) -> Result<Vec<PathBuf>, Error> {
    let literal = base.join(pattern);
    if !pattern.contains(['*', '?', '[']) || fs::symlink_metadata(&literal).is_ok() {
        return Ok(vec![tidy(&literal)]);
    }
    let bad =
        |reason: &dyn ToString| Error::BadPattern { pattern: pattern.to_owned(), reason: reason.to_string() };
    let Some(directory) = base.to_str() else {
        return Err(bad(&format!("it is relative to {}, whose name is not UTF-8", base.display())));
    };
    // The base directory is a literal name, not a part of the glob.
    let absolute = Path::new(&Pattern::escape(directory)).join(pattern);
    let absolute = absolute.to_string_lossy();
    let all = MatchOptions {
        case_sensitive: true,
        require_literal_separator: true,
        require_literal_leading_dot: false,
    };
    // Hidden files are removed here: with its own option, `glob` never finds `.*` and panics on names that
    // are not UTF-8.
    let visible = MatchOptions { require_literal_leading_dot: true, ..all };
    let compiled = Pattern::new(&absolute).map_err(|e| bad(&e))?;
    let mut files = Vec::new();
    for entry in glob::glob_with(&absolute, all).map_err(|e| bad(&e))? {
        let path = entry.map_err(|e| Error::Unreadable { path: e.path().to_path_buf(), source: e.into() })?;
        if !path.is_dir() && compiled.matches_path_with(&path, visible) {
            files.push(tidy(&path));
        }
    }
    if files.is_empty() {
        return Err(Error::NoMatch { pattern: pattern.to_owned(), base: base.to_path_buf() });
    }
    files.sort_unstable();
    Ok(files)
}

/// Converts a pattern relative to `base` to an absolute pattern.
#[must_use]
pub fn absolute(base: &Path, pattern: &str) -> String {
    let literal = base.join(pattern);
    let is_glob = pattern.contains(['*', '?', '[']) && fs::symlink_metadata(&literal).is_err();
    let escaped = || Path::new(&Pattern::escape(&base.to_string_lossy())).join(pattern);
    let path = if is_glob && Path::new(pattern).is_relative() { escaped() } else { literal };
    path.to_string_lossy().into_owned()
}

/// Sorts files by path and removes duplicates. Of two names for the same file, the first is kept.
pub(crate) fn sorted_once(mut files: Vec<PathBuf>) -> Vec<PathBuf> {
    files.sort_unstable();
    let mut seen = HashSet::new();
    files.retain(|path| seen.insert(fs::canonicalize(path).unwrap_or_else(|_| path.clone())));
    files
}

/// Returns the path without `.` components, so that `a.txt` and `./a.txt` compare equal.
fn tidy(path: &Path) -> PathBuf {
    path.components().filter(|part| *part != Component::CurDir).collect()
}
