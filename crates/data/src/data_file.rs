//! Files read by position, with every read checked.

use crate::Error;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Maximum number of files that a process keeps open between reads. Further files are opened for each read,
/// because a corpus may have more files than a process may open (1,024 by default on Linux).
const KEPT_OPEN: usize = 512;

/// Number of files currently kept open.
static OPEN: AtomicUsize = AtomicUsize::new(0);

/// A regular file that must not change after it was opened.
///
/// Reading beyond its end, or after it was modified, is an error. The file is not memory-mapped, so
/// truncating it cannot end the process.
#[derive(Debug)]
pub(crate) struct DataFile {
    path: PathBuf,
    mark: Mark,
    open_file: Option<OpenFile>,
}

/// Metadata that reveals a change of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mark {
    inode: u64,
    length: u64,
    /// Modification time in seconds and nanoseconds.
    modified: (i64, i64),
}

impl Mark {
    fn from_metadata(metadata: &Metadata) -> Self {
        let modified = (metadata.mtime(), metadata.mtime_nsec());
        Self { inode: metadata.ino(), length: metadata.len(), modified }
    }
}

/// A file that stays open, included in [`OPEN`].
#[derive(Debug)]
struct OpenFile(File);

impl OpenFile {
    fn new(file: File) -> Option<Self> {
        let counted = OPEN.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |open| {
            (open < KEPT_OPEN).then_some(open + 1)
        });
        counted.ok().map(|_| Self(file))
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        OPEN.fetch_sub(1, Ordering::Relaxed);
    }
}

impl DataFile {
    /// Opens a file.
    ///
    /// # Errors
    /// The file, named by its path, is missing, not regular, unreadable, or a git-lfs pointer.
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let unreadable = |source: io::Error| match source.kind() {
            io::ErrorKind::NotFound => Error::Missing { path: path.to_path_buf() },
            _ => Error::Unreadable { path: path.to_path_buf(), source },
        };
        // Checked before opening, because opening a pipe would wait for its writer.
        let metadata = fs::metadata(path).map_err(unreadable)?;
        if !metadata.is_file() {
            let what = if metadata.is_dir() { "a directory" } else { "a device, pipe or socket" };
            return Err(Error::NotAFile { path: path.to_path_buf(), what });
        }
        let file = system::input::open(path).map_err(unreadable)?;
        let mark = Mark::from_metadata(&file.metadata().map_err(unreadable)?);
        Ok(Self { path: path.to_path_buf(), mark, open_file: OpenFile::new(file) })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the modification time in seconds since 1970.
    pub(crate) fn modified(&self) -> i64 {
        self.mark.modified.0
    }

    pub(crate) fn len(&self) -> u64 {
        self.mark.length
    }

    /// Reads a whole file of at most `most` bytes.
    ///
    /// # Errors
    /// [`Error::Unreadable`], also for a longer file, which is not read.
    pub(crate) fn read_whole(&self, most: u64) -> Result<Vec<u8>, Error> {
        let unreadable = |source| Error::Unreadable { path: self.path.clone(), source };
        system::input::read(&self.path, most).map_err(unreadable)
    }

    /// Fills `out` with the bytes from `offset` on.
    ///
    /// # Errors
    /// [`Error::Changed`] if the file was modified after opening or ends too early; [`Error::Unreadable`].
    pub(crate) fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        let unreadable = |source| Error::Unreadable { path: self.path.clone(), source };
        let opened;
        let file = match &self.open_file {
            Some(OpenFile(file)) => file,
            None => {
                opened = File::open(&self.path).map_err(unreadable)?;
                &opened
            }
        };
        let now = Mark::from_metadata(&file.metadata().map_err(unreadable)?);
        let changed =
            || Error::Changed { path: self.path.clone(), before: self.mark.length, now: now.length };
        if now != self.mark {
            return Err(changed());
        }
        match file.read_exact_at(out, offset) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(changed()),
            read => read.map_err(unreadable),
        }
    }
}
