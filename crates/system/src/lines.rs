//! Reads a file line by line with a limit per line, so that files of any size take bounded memory.

use std::fs::File;
use std::io::{BufRead, BufReader, Error, ErrorKind, Read, Result};
use std::ops::Range;
use std::path::Path;

use crate::input;
use crate::numbers::grouped;

/// Number of bytes read from the file at once.
const PIECE: usize = 1 << 18;

/// A line of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// Number of the line, from 1.
    pub number: u64,
    /// Content of the line, without its line feed.
    pub text: &'a [u8],
    /// Range of the line's bytes in the file, including its line feed.
    pub range: Range<u64>,
    /// Whether the line ends with a line feed; a killed writer's last line may not.
    pub is_complete: bool,
}

/// The lines of a file, each with a limited length.
#[derive(Debug)]
pub struct Lines {
    reader: BufReader<File>,
    most: u64,
    text: Vec<u8>,
    number: u64,
    end: u64,
}

impl Lines {
    /// Opens a regular file whose lines have at most `most` bytes each.
    pub fn open(path: &Path, most: u64) -> Result<Self> {
        Ok(Self::from_file(input::open(path)?, most))
    }

    /// Reads `file` from its current position; offsets are relative to it.
    #[must_use]
    pub fn from_file(file: File, most: u64) -> Self {
        let reader = BufReader::with_capacity(PIECE, file);
        Lines { reader, most, text: Vec::new(), number: 0, end: 0 }
    }

    /// Returns the next line; `None` at the end of the file.
    ///
    /// # Errors
    /// A line is longer than allowed (the error has its number, and the line is not read further), or the
    /// system fails.
    pub fn next_line(&mut self) -> Result<Option<Line<'_>>> {
        self.text.clear();
        let start = self.end;
        // The line feed is not part of the limit.
        let read = (&mut self.reader).take(self.most.saturating_add(1)).read_until(b'\n', &mut self.text)?;
        if read == 0 {
            return Ok(None);
        }
        self.number += 1;
        self.end = start + read as u64;
        let is_complete = self.text.pop_if(|byte| *byte == b'\n').is_some();
        if self.text.len() as u64 > self.most {
            let number = self.number;
            let most = grouped(self.most);
            let text = format!("line {number} has more than {most} bytes, which is the limit");
            return Err(Error::new(ErrorKind::FileTooLarge, text));
        }
        Ok(Some(Line { number: self.number, text: &self.text, range: start..self.end, is_complete }))
    }
}
