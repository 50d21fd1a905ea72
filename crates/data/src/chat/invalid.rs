//! Handles invalid lines of conversation or pair files: they are errors, or are skipped and counted.

use std::path::Path;

use system::numbers::grouped;

use crate::Error;

/// Maximum number of invalid lines that are logged individually.
const NAMED: u64 = 3;

/// Counts invalid lines that are skipped, or returns them as errors.
#[derive(Debug)]
pub(super) struct InvalidLines {
    skips: bool,
    count: u64,
    /// Number of invalid lines in the current file.
    in_file: u64,
    /// Error of the first invalid line in the current file.
    first: Option<String>,
}

impl InvalidLines {
    pub(super) fn new(skips: bool) -> Self {
        Self { skips, count: 0, in_file: 0, first: None }
    }

    /// Returns the value read from a line; `None` if the line is invalid and skipped.
    ///
    /// # Errors
    /// The line is invalid and invalid lines are not skipped, or another error occurred.
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

    /// Ends a file with `kept` valid conversations or pairs.
    ///
    /// # Errors
    /// No line is valid.
    pub(super) fn end_file(&mut self, path: &Path, kept: usize) -> Result<(), Error> {
        let count = std::mem::take(&mut self.in_file);
        let first = self.first.take();
        match first.filter(|_| kept == 0) {
            Some(first) => Err(Error::NothingLeft { path: path.to_path_buf(), count, first }),
            None => Ok(()),
        }
    }

    /// Logs the number of skipped lines, if there are any.
    pub(super) fn log(&self, noun: &str) {
        if self.count > 0 {
            let lines = if self.count == 1 { "line is" } else { "lines are" };
            tracing::warn!("{noun}: {} invalid {lines} left out (data.skip_invalid)", grouped(self.count));
        }
    }
}

/// Returns the error of a line that is invalid for `reason`.
pub(super) fn bad_line(path: &Path, line: u64, reason: String) -> Error {
    Error::BadConversation { path: path.to_path_buf(), line, reason }
}
