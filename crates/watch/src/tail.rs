//! The lines of a file that another process appends to.

use std::io::{ErrorKind, Read, Result, Seek, SeekFrom};
use std::path::PathBuf;

use system::input;

/// Most bytes that are read at once.
const MOST_BYTES: u64 = 256 << 20;

/// Reads a growing file: each call returns the complete lines since the one before.
#[derive(Debug)]
pub(crate) struct Tail {
    path: PathBuf,
    /// Bytes of the lines that have been returned.
    offset: u64,
}

impl Tail {
    pub(crate) fn new(path: PathBuf) -> Self {
        Tail { path, offset: 0 }
    }

    /// Returns the new text, complete lines only. If the file has become shorter, it begins again at its
    /// start. No text if there is no file.
    ///
    /// # Errors
    /// The file cannot be read, or is not regular.
    pub(crate) fn read(&mut self) -> Result<String> {
        let mut file = match input::open(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(String::new()),
            opened => opened?,
        };
        if file.metadata()?.len() < self.offset {
            self.offset = 0;
        }
        file.seek(SeekFrom::Start(self.offset))?;
        let mut bytes = Vec::new();
        file.take(MOST_BYTES).read_to_end(&mut bytes)?;
        let complete = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        bytes.truncate(complete);
        self.offset += complete as u64;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "in tests, a panic is the report of a failure")]

    use super::*;

    #[test]
    fn only_complete_lines_are_read_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lines");
        let mut tail = Tail::new(path.clone());
        for (text, new) in [
            ("", ""),
            ("one\ntw", "one\n"),
            ("one\ntwo\nthree\n", "two\nthree\n"),
            ("one\ntwo\nthree\n", ""),
            ("one\n", "one\n"),
        ] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(tail.read().unwrap(), new, "{text:?}");
        }
        std::fs::remove_file(&path).unwrap();
        assert_eq!(tail.read().unwrap(), "");
    }
}
