//! Writing checkpoints during training: one thread, one checkpoint at a time.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use system::numbers::{grouped, megabytes_of};
use system::pace::{Pace, QUIET};
use system::{fail_point, threads};

use crate::contents::Contents;
use crate::directory::Directory;
use crate::error::{CheckpointError, Result};
use crate::format;
use crate::manifest::{MANIFEST, Manifest, STATE};
use crate::snapshot::Snapshot;
use crate::validations::Validations;

/// The destination and the shared data of a run's checkpoints.
#[derive(Clone, Debug)]
struct Job {
    directory: Directory,
    contents: Contents,
}

/// A checkpoint that is being written.
#[derive(Debug)]
struct InFlight {
    path: PathBuf,
    thread: JoinHandle<(Snapshot, Result<()>)>,
}

/// Writes the checkpoints of a run, each on a separate thread.
#[derive(Debug)]
pub struct Writer {
    job: Job,
    /// Memory of the last written snapshot, for the next one.
    spare: Snapshot,
    in_flight: Option<InFlight>,
    /// The reason why the last checkpoint was not started.
    unstarted: Option<CheckpointError>,
}

impl Writer {
    /// Returns a writer for the run in `run_dir`.
    pub fn new(run_dir: &Path, contents: Contents) -> Self {
        let job = Job { directory: Directory::of(run_dir), contents };
        // A killed process may have published a new checkpoint without deleting the oldest.
        if let Err(error) = job.directory.retain(job.contents.keep) {
            tracing::warn!("an old checkpoint is still there: {error}");
        }
        Writer { job, spare: Snapshot::default(), in_flight: None, unstarted: None }
    }

    /// Returns whether a checkpoint is being written, without waiting.
    pub fn is_busy(&self) -> bool {
        self.in_flight.as_ref().is_some_and(|in_flight| !in_flight.thread.is_finished())
    }

    /// Waits for the checkpoint being written and returns an empty snapshot to fill. If that checkpoint
    /// failed, it is a warning: the next one replaces it.
    pub fn begin(&mut self) -> Snapshot {
        if let Err(error) = self.finish() {
            tracing::warn!("a checkpoint was not written: {error}");
        }
        let mut snapshot = std::mem::take(&mut self.spare);
        snapshot.clear();
        snapshot
    }

    /// Starts to write the state after `step` steps. `is_best`: the last of `validations` is of this state
    /// and has the lowest loss.
    pub fn write(&mut self, snapshot: Snapshot, step: u64, validations: Validations, is_best: bool) {
        let job = self.job.clone();
        let path = job.directory.step(step);
        let body = move || {
            let written = job.write(&snapshot, step, validations, is_best);
            (snapshot, written)
        };
        match threads::spawn("checkpoint", body) {
            Ok(thread) => self.in_flight = Some(InFlight { path, thread }),
            Err(error) => {
                let what = format!("the thread to write it cannot be started: {error}");
                self.unstarted = Some(CheckpointError::Thread { path, what });
            }
        }
    }

    /// Waits for the checkpoint being written.
    ///
    /// # Errors
    /// A checkpoint that could not be written.
    pub fn finish(&mut self) -> std::result::Result<(), CheckpointError> {
        if let Some(error) = self.unstarted.take() {
            return Err(error);
        }
        let Some(InFlight { path, thread }) = self.in_flight.take() else { return Ok(()) };
        let panicked = |_| CheckpointError::Thread { path, what: "its writer panicked".to_owned() };
        let (snapshot, written) = thread.join().map_err(panicked)?;
        self.spare = snapshot;
        written
    }
}

/// A failing run still completes the checkpoint being written.
impl Drop for Writer {
    fn drop(&mut self) {
        if let Err(error) = self.finish() {
            tracing::warn!("a checkpoint was not written: {error}");
        }
    }
}

impl Job {
    /// Writes a checkpoint, renames it, links it as the best if it is, and deletes the oldest
    /// beyond `keep`.
    fn write(&self, snapshot: &Snapshot, step: u64, validations: Validations, is_best: bool) -> Result<()> {
        let (temporary, pace) = (self.directory.temporary(step), Pace::of_files());
        let unready = |what| CheckpointError::Thread { path: self.directory.step(step), what };
        (self.contents.before)().map_err(unready)?;
        self.directory.make()?;
        let written = self.write_files(&temporary, snapshot, step, validations, &pace);
        if let Err(error) = written.and_then(|()| self.directory.publish(&temporary, step)) {
            // The first error matters; there may be nothing to delete.
            let _ = fs::remove_dir_all(&temporary);
            return Err(error);
        }
        if pace.elapsed() > QUIET {
            let bytes = grouped(snapshot.bytes.len() as u64);
            let seconds = pace.elapsed().as_secs_f64();
            tracing::info!(
                "the checkpoint of step {step}, {bytes} bytes, is on the disk after {seconds:.0} s"
            );
        }
        if is_best {
            self.directory.name_best(step)?;
        }
        self.directory.retain(self.contents.keep)
    }

    fn write_files(
        &self,
        temporary: &Path,
        snapshot: &Snapshot,
        step: u64,
        validations: Validations,
        pace: &Pace,
    ) -> Result<()> {
        fs::create_dir(temporary).map_err(CheckpointError::file(temporary, "make the directory"))?;
        fail_point::reach("checkpoint directory made");
        let written = |bytes: usize| {
            if pace.is_due() {
                let progress = megabytes_of(bytes as u64, snapshot.bytes.len() as u64);
                tracing::info!("writing the checkpoint of step {step}: {progress}");
            }
        };
        let state = format::write(&temporary.join(STATE), &snapshot.entries, &snapshot.bytes, written)?;
        let manifest =
            Manifest::new(step, (snapshot.updates, snapshot.loss_scale), &self.contents, validations, state);
        let path = temporary.join(MANIFEST);
        let mut file = File::create_new(&path).map_err(CheckpointError::file(&path, "create it"))?;
        file.write_all(&manifest.to_text()).map_err(CheckpointError::file(&path, "write to it"))?;
        fail_point::reach("checkpoint manifest written");
        file.sync_all().map_err(CheckpointError::file(&path, "bring it to the disk"))
    }
}
