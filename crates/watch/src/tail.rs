//! The lines of a file that another process appends to.

use std::io::{ErrorKind, Result, Seek, SeekFrom};
use std::path::PathBuf;

use system::input;
use system::lines::Lines;

/// Most bytes of a line.
const MOST_LINE: u64 = 64 << 20;

/// Reads a growing file: each call passes on the complete lines since the one before.
#[derive(Clone, Debug)]
pub(crate) struct Tail {
    path: PathBuf,
    /// Bytes of the lines that have been passed on.
    offset: u64,
}

impl Tail {
    pub(crate) fn new(path: PathBuf) -> Self {
        Tail { path, offset: 0 }
    }

    /// Passes the new lines to `take`, complete ones only. If the file has become shorter, it begins again at
    /// its start. No lines if there is no file.
    ///
    /// # Errors
    /// The file cannot be read, is not regular, or has a line that is too long.
    pub(crate) fn read(&mut self, mut take: impl FnMut(&[u8])) -> Result<()> {
        let mut file = match input::open(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            opened => opened?,
        };
        if file.metadata()?.len() < self.offset {
            self.offset = 0;
        }
        file.seek(SeekFrom::Start(self.offset))?;
        let mut lines = Lines::of(file, MOST_LINE);
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
