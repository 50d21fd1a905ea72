//! Invalid lines of files of conversations or pairs, which end the reading or are left out.

use std::path::Path;

use system::numbers::grouped;

use crate::Error;

/// Number of invalid lines that the log names.
const NAMED: u64 = 3;

/// Invalid lines: refused, or counted and left out.
#[derive(Debug)]
pub(super) struct InvalidLines {
    skips: bool,
    count: u64,
    /// Number of invalid lines in the present file.
    in_file: u64,
    /// Error of the first invalid line in the present file.
    first: Option<String>,
}

impl InvalidLines {
    pub(super) fn new(skips: bool) -> Self {
        Self { skips, count: 0, in_file: 0, first: None }
    }

    /// Returns a value that was read from a line; `None` if the line is invalid and left out.
    ///
    /// # Errors
    /// An invalid line that is not left out; other errors.
    pub(super) fn pass<T>(&mut self, read: Result<T, Error>) -> Result<Option<T>, Error> {
        match read {
            Ok(value) => Ok(Some(value)),
            Err(error @ Error::BadConversation { .. }) if self.skips => {
                self.count += 1;
                self.in_file += 1;
                if self.count <= NAMED {
                    tracing::warn!("{error}: left out");
                }
                self.first.get_or_insert_with(|| error.to_string());
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Ends a file of which `kept` conversations or pairs are left.
    ///
    /// # Errors
    /// A file of which nothing is left because of invalid lines.
    pub(super) fn end_file(&mut self, path: &Path, kept: usize) -> Result<(), Error> {
        let count = std::mem::take(&mut self.in_file);
        let first = self.first.take();
        match first.filter(|_| kept == 0) {
            Some(first) => Err(Error::NothingLeft { path: path.to_path_buf(), count, first }),
            None => Ok(()),
        }
    }

    /// Logs the number of lines that were left out, if there are any.
    pub(super) fn log(&self, noun: &str) {
        if self.count > 0 {
            let lines = if self.count == 1 { "line is" } else { "lines are" };
            tracing::warn!("{noun}: {} invalid {lines} left out (data.skip_invalid)", grouped(self.count));
        }
    }
}

/// The error of a line that is invalid for `reason`.
pub(super) fn bad_line(path: &Path, line: u64, reason: String) -> Error {
    Error::BadConversation { path: path.to_path_buf(), line, reason }
}
