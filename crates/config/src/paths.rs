//! Resolves the paths in keys that name files.

use std::path::{Component, Path, PathBuf};

use data::Tokenizer;
use keys::{Error, RawValues, Reading, Takes, Value};

/// File name of the tokenizer in a Hugging Face folder.
pub(crate) const TOKENIZER: &str = "tokenizer.json";

pub(crate) fn read(value: &Value, _: &Takes) -> Reading<PathBuf> {
    match value {
        Value::Text(text) => Reading::Good(PathBuf::from(text)),
        _ => Reading::WrongType,
    }
}

#[allow(clippy::ptr_arg, reason = "a row writes a reference to its field's type")]
pub(crate) fn value(path: &PathBuf) -> Value {
    path.to_string_lossy().into_owned().into()
}

/// Returns the absolute path of the file or folder at `key`; `None` if the key is empty. Errors call it
/// `what`.
pub(crate) fn file(
    written: Option<PathBuf>,
    raw: &RawValues,
    key: &str,
    what: &str,
) -> Result<Option<PathBuf>, Error> {
    let Some(written) = written else { return Ok(None) };
    in_utf8(raw, key, what, normal_path(&raw.directory_of(key).join(written))).map(Some)
}

/// Returns the name of a built-in tokenizer, or the absolute path of a tokenizer file, which may be inside
/// the named folder.
pub(crate) fn tokenizer(written: String, raw: &RawValues, key: &str) -> Result<String, Error> {
    if Tokenizer::NAMES.contains(&written.as_str()) {
        return Ok(written);
    }
    let mut path = normal_path(&raw.directory_of(key).join(written));
    if path.is_dir() {
        path.push(TOKENIZER);
    }
    Ok(in_utf8(raw, key, "tokenizer", path)?.to_string_lossy().into_owned())
}

/// Returns the path of the tokenizer in the folder named by `key`; `None` if there is none.
pub(crate) fn tokenizer_in(raw: &RawValues, key: &str) -> Result<Option<String>, Error> {
    let from = raw.text(key)?;
    if from.is_empty() {
        return Ok(None);
    }
    let file = normal_path(&raw.directory_of(key).join(from)).join(TOKENIZER);
    // A folder or a link to nowhere of this name is refused where it is read.
    Ok(file.symlink_metadata().is_ok().then(|| file.to_string_lossy().into_owned()))
}

/// Returns `path` unchanged.
///
/// # Errors
/// The path is not UTF-8 and so cannot be written in a configuration.
pub(crate) fn in_utf8(raw: &RawValues, key: &str, what: &str, path: PathBuf) -> Result<PathBuf, Error> {
    match path.to_str() {
        Some(_) => Ok(path),
        None => {
            let reason = format!("the {what}, {}, has a name that is not UTF-8", path.display());
            Err(raw.conflict(&[key], reason))
        }
    }
}

/// Returns the path with `.` and `..` resolved by name only, without following links.
#[must_use]
pub fn normal_path(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            // The root has no parent.
            Component::ParentDir => drop(normal.pop()),
            part => normal.push(part),
        }
    }
    normal
}
