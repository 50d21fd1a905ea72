//! Recognises what a file contains from its first object.

use std::path::Path;

use serde_json::{Map, Value};

use crate::Error;
use crate::chat::ChatFormat;
use crate::records::{Record, first_byte, first_record};

/// Extensions of JSON files.
const JSON: [&str; 4] = ["json", "jsonl", "ndjson", "jsonlines"];
/// Extensions of compressed files, which follow another extension.
const PACKED: [&str; 3] = ["gz", "zst", "zstd"];

/// Contents of a text, JSON or Parquet file, plain or compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileContents {
    /// Text that is not JSON.
    Text,
    /// Conversations, of any [`ChatFormat`].
    Conversations,
    /// Preference pairs.
    Pairs,
    /// Multiple-choice questions.
    Questions,
    /// Objects with a string `text`.
    Texts,
    /// Other JSON.
    Json,
}

impl FileContents {
    /// Recognises the contents of `path` from its first object. Text in a file with a JSON extension is
    /// [`FileContents::Json`].
    ///
    /// # Errors
    /// The file cannot be read, or its format is not supported.
    pub fn from_file(path: &Path) -> Result<Self, Error> {
        let by_name = if is_json(path) { Self::Json } else { Self::Text };
        match first_byte(path)? {
            None | Some(b'{' | b'[') => {}
            Some(_) => return Ok(by_name),
        }
        match first_record(path) {
            Ok(Some(Record { values, .. })) => Ok(Self::of_object(&values)),
            Ok(None) | Err(Error::BadConversation { .. }) => Ok(by_name),
            Err(error) => Err(error),
        }
    }

    fn of_object(object: &Map<String, Value>) -> Self {
        let has = |key: &str| object.get(key).is_some_and(|value| !value.is_null());
        if has("chosen") && has("rejected") {
            Self::Pairs
        } else if ChatFormat::has_keys(object) {
            Self::Conversations
        } else if has("endings") && (has("context") || has("ctx")) {
            Self::Questions
        } else if object.get("text").is_some_and(Value::is_string) {
            Self::Texts
        } else {
            Self::Json
        }
    }
}

/// Returns whether a file has a JSON extension, ignoring an extension for compression.
fn is_json(path: &Path) -> bool {
    let extension = |path: &Path| path.extension()?.to_str().map(str::to_ascii_lowercase);
    let is_packed = extension(path).is_some_and(|extension| PACKED.contains(&extension.as_str()));
    let name = if is_packed { path.with_extension("") } else { path.to_path_buf() };
    extension(&name).is_some_and(|extension| JSON.contains(&extension.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_object_shows_the_contents() {
        let directory = tempfile::tempdir().unwrap();
        for (name, text, expected) in [
            ("a", "\n \n{\"messages\": []}\nnot JSON\n", FileContents::Conversations),
            ("a", "\u{feff}{\"conversations\": [{\"from\": \"human\"}]}\n", FileContents::Conversations),
            ("a", "[\n{\"instruction\": \"a\",\n \"output\": NaN},", FileContents::Conversations),
            ("a", "{\"prompt\": \"a\", \"completion\": \"b\"}", FileContents::Conversations),
            ("a", "{\"prompt\": \"a\", \"text\": \"b\"}", FileContents::Texts),
            ("a", "{\"chosen\": \"a\", \"rejected\": \"b\", \"messages\": []}", FileContents::Pairs),
            ("a", "{\"ctx\": \"a\", \"endings\": []}", FileContents::Questions),
            ("a", "{\"id\": 1, \"text\": \"a\"}", FileContents::Texts),
            ("a", "{\"text\": 1}\n", FileContents::Json),
            ("a", "{\n\"messages\": []}\n", FileContents::Text),
            ("a.json", "{\n\"messages\": []}\n", FileContents::Json),
            ("a.jsonl", "plain text\n", FileContents::Json),
            ("a", "[\"messages\"]\n", FileContents::Text),
            ("a", "[link](b)\n", FileContents::Text),
            ("a", "plain text\n", FileContents::Text),
            ("a", "", FileContents::Text),
        ] {
            let path = directory.path().join(name);
            std::fs::write(&path, text).unwrap();
            assert_eq!(FileContents::from_file(&path).unwrap(), expected, "{name}: {text:?}");
        }
        assert!(FileContents::from_file(directory.path()).is_err());
        assert!(FileContents::from_file(&directory.path().join("missing")).is_err());
    }
}
