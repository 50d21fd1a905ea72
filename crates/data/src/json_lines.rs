//! Recognition of files of JSON lines, which read as plain text would give keys and braces.

use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

/// The most bytes of the lines that are looked at.
const MOST_BYTES: u64 = 4 << 20;

/// The contents of a file of JSON lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JsonLines {
    /// Conversations: objects with a list `messages`.
    Conversations,
    /// Documents: objects with a string `text`.
    Texts,
}

impl JsonLines {
    /// Returns the contents of `path` as its first line that is not empty shows; `None` for other files, and
    /// for those that cannot be read or are no regular file.
    #[must_use]
    pub fn of(path: &Path) -> Option<Self> {
        let file = File::open(path).ok().filter(|_| path.is_file())?;
        let mut lines = BufReader::new(file).take(MOST_BYTES);
        let mut line = Vec::new();
        while line.trim_ascii().is_empty() {
            line.clear();
            if lines.read_until(b'\n', &mut line).ok()? == 0 {
                return None;
            }
        }
        if !line.trim_ascii().starts_with(b"{") {
            return None;
        }
        let object: Value = serde_json::from_slice(&line).ok()?;
        if object["messages"].is_array() {
            return Some(Self::Conversations);
        }
        object["text"].is_string().then_some(Self::Texts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_shows_the_contents() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        for (text, expected) in [
            ("\n \n{\"messages\": []}\nnot JSON\n", Some(JsonLines::Conversations)),
            ("{\"id\": 1, \"text\": \"a\"}", Some(JsonLines::Texts)),
            ("{\"text\": 1}\n", None),
            ("{\n\"messages\": []}\n", None),
            ("[\"messages\"]\n", None),
            ("plain text\n", None),
            ("", None),
        ] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(JsonLines::of(&path), expected, "{text:?}");
        }
        assert_eq!(JsonLines::of(directory.path()), None);
        assert_eq!(JsonLines::of(&directory.path().join("missing")), None);
    }
}
