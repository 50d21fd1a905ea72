//! The file of a rank's status, rewritten in place on its own thread so that no step waits for a disk.

use std::fs::{File, OpenOptions};
use std::io::Result;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use system::{output, threads};

/// Maximum time to wait for the status file's disk when a rank ends.
const PATIENCE: Duration = Duration::from_secs(10);

/// A file of constant size that holds the latest text. Texts that are replaced before they are written are
/// skipped.
#[derive(Debug)]
pub(super) struct StatusFile(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    latest: Mutex<Latest>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Latest {
    text: Option<Vec<u8>>,
    is_writing: bool,
    /// Whether no further text will follow.
    is_over: bool,
}

impl StatusFile {
    /// Creates the file with its first text, and starts the writer thread.
    ///
    /// # Errors
    /// The file cannot be created or written, or the path is a link or not a regular file.
    pub(super) fn create(path: &Path, first: Vec<u8>) -> Result<Self> {
        let file = output::open_own(path, OpenOptions::new().write(true).create(true).truncate(true))?;
        file.write_all_at(&first, 0)?;
        let shared = Arc::new(Shared::default());
        let own = Arc::clone(&shared);
        threads::spawn("status", move || own.serve(&file))?;
        Ok(StatusFile(shared))
    }

    /// Requests that the file be rewritten with `text`, which must have the size of the first.
    pub(super) fn write(&self, text: Vec<u8>) {
        self.0.latest().text = Some(text);
        self.0.changed.notify_all();
    }

    /// Waits until the latest text is in the file, up to a time limit.
    pub(super) fn finish(&self) {
        let pending = |latest: &mut Latest| latest.text.is_some() || latest.is_writing;
        // A late text is lost with the process.
        let _ = self.0.changed.wait_timeout_while(self.0.latest(), PATIENCE, pending);
    }
}

impl Drop for StatusFile {
    fn drop(&mut self) {
        // Users who ask why this rank ended read its last text.
        self.finish();
        self.0.latest().is_over = true;
        self.0.changed.notify_all();
    }
}

impl Shared {
    fn latest(&self) -> MutexGuard<'_, Latest> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self, file: &File) {
        loop {
            let waits = |latest: &mut Latest| latest.text.is_none() && !latest.is_over;
            let latest = self.changed.wait_while(self.latest(), waits);
            let mut latest = latest.unwrap_or_else(PoisonError::into_inner);
            let Some(text) = latest.text.take() else { return };
            latest.is_writing = true;
            drop(latest);
            // A full disk must not end the training.
            let _ = file.write_all_at(&text, 0);
            self.latest().is_writing = false;
            self.changed.notify_all();
        }
    }
}
