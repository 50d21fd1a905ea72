//! One process at a time trains in a run directory.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use crate::error::{Result, TrainError};

/// A run directory that this process may write to, until it is dropped or the process ends, however that happens.
#[derive(Debug)]
pub(crate) struct RunLock {
    path: PathBuf,
    _held: Option<File>,
}

impl RunLock {
    /// Takes the directory `path`. Errors: another process has it.
    pub(crate) fn take(path: &Path) -> Result<Self> {
        let unreadable = |error: std::io::Error| {
            TrainError::Refused(format!("--run-dir {}: it cannot be opened: {error}", path.display()))
        };
        let directory = File::open(path).map_err(unreadable)?;
        let held = match directory.try_lock() {
            Ok(()) => Some(directory),
            Err(TryLockError::WouldBlock) => {
                let text = format!("--run-dir {}: another process is training there", path.display());
                return Err(TrainError::Refused(text));
            }
            // Some network file systems lock no directories. There one has to be as careful as without this.
            Err(TryLockError::Error(_)) => None,
        };
        Ok(RunLock { path: path.to_owned(), _held: held })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}
