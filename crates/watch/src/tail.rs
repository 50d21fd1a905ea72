//! Reads lines of a file that another process appends to.

use std::io::{ErrorKind, Result, Seek, SeekFrom};
use std::path::PathBuf;

use system::input;
use system::lines::Lines;

/// Maximum size of a line in bytes.
const MOST_LINE: u64 = 64 << 20;

/// Reads a growing file: each call returns the complete lines since the previous call.
#[derive(Clone, Debug)]
pub(crate) struct Tail {
    path: PathBuf,
    /// Offset in bytes after the last line read.
    offset: u64,
}

impl Tail {
    pub(crate) fn new(path: PathBuf) -> Self {
        Tail { path, offset: 0 }
    }

    /// Calls `take` with each new complete line. If the file has become shorter, reading restarts at its
    /// beginning. A missing file has no lines.
    ///
    /// # Errors
    /// The file cannot be read, is not regular, or has an overlong line.
    pub(crate) fn read(&mut self, mut take: impl FnMut(&[u8])) -> Result<()> {
        let mut file = match input::open(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            opened => opened?,
        };
        if file.metadata()?.len() < self.offset {
            self.offset = 0;
        }
        file.seek(SeekFrom::Start(self.offset))?;
        let mut lines = Lines::from_file(file, MOST_LINE);
        let start = self.offset;
        while let Some(line) = lines.next_line()?.filter(|line| line.is_complete) {
            self.offset = start + line.range.end;
            take(line.text);
        }
        Ok(())
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
        let read = |tail: &mut Tail| {
            let mut text = String::new();
            tail.read(|line| text += &format!("{}\n", str::from_utf8(line).unwrap())).unwrap();
            text
        };
        for (text, new) in [
            ("", ""),
            ("one\ntw", "one\n"),
            ("one\ntwo\nthree\n", "two\nthree\n"),
            ("one\ntwo\nthree\n", ""),
            ("one\n", "one\n"),
        ] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(read(&mut tail), new, "{text:?}");
        }
        std::fs::remove_file(&path).unwrap();
        assert_eq!(read(&mut tail), "");
    }
}
