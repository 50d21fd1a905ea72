//! Writing checkpoints while training goes on: one thread, one in flight.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::thread::{Builder, JoinHandle};

use super::directory::Directory;
use super::error::{CheckpointError, Result};
use super::format;
use super::manifest::{MANIFEST, Manifest, STATE};
use super::snapshot::Snapshot;
use crate::build::Dataset;
use crate::session::Course;
use crate::worker::{Setup, Worker};

/// What does not change from one checkpoint of a run to the next.
#[derive(Clone)]
struct Common {
    directory: Directory,
    metrics: PathBuf,
    keep: u64,
    configuration: BTreeMap<String, String>,
    dataset: Dataset,
}

/// A checkpoint that is being written.
struct InFlight {
    path: PathBuf,
    thread: JoinHandle<(Snapshot, Result<()>)>,
}

/// Takes and writes the checkpoints of a run.
pub(crate) struct Saver {
    common: Common,
    /// The memory of the last snapshot, when it has been written.
    spare: Snapshot,
    in_flight: Option<InFlight>,
    /// Why the last one was not even begun.
    unstarted: Option<CheckpointError>,
}

impl Saver {
    /// For the run in `run_dir`; `None` where it takes no checkpoints, or computes nothing that one could hold.
    pub(crate) fn new(setup: &Setup, run_dir: &Path) -> Option<Self> {
        let config = &setup.config;
        if config.checkpoint.every == 0 || setup.placement.is_meta() {
            return None;
        }
        let common = Common {
            directory: Directory::of(run_dir),
            metrics: run_dir.join("metrics.jsonl"),
            keep: config.checkpoint.keep,
            configuration: config.identity(),
            dataset: setup.dataset.clone(),
        };
        // A process that was killed may have put a new one in place and not yet deleted the oldest.
        if let Err(error) = common.directory.retain(common.keep) {
            tracing::warn!("an old checkpoint is still there: {error}");
        }
        Some(Saver { common, spare: Snapshot::default(), in_flight: None, unstarted: None })
    }

    /// Copies the state of a run, of which `worker` is rank 0, and starts to write it, after the one before has been written. That one's failure is
    /// a warning: this one takes its place. Errors: the device's.
    pub(crate) fn save(&mut self, worker: &mut Worker, course: &Course) -> crate::error::Result<()> {
        if let Err(error) = self.finish() {
            tracing::warn!("a checkpoint was not written: {error}");
        }
        let mut snapshot = std::mem::take(&mut self.spare);
        snapshot.take(worker, &course.losses)?;
        let (step, validation_loss) = (course.steps, course.validation_loss);
        let common = self.common.clone();
        let path = common.directory.step(step);
        let body = move || {
            let written = common.write(&snapshot, step, validation_loss);
            (snapshot, written)
        };
        match Builder::new().name("checkpoint".to_owned()).spawn(body) {
            Ok(thread) => self.in_flight = Some(InFlight { path, thread }),
            Err(error) => {
                let what = format!("there is no thread to write it: {error}");
                self.unstarted = Some(CheckpointError::Thread { path, what });
            }
        }
        Ok(())
    }

    /// Waits for the checkpoint in flight. Errors: why it could not be written.
    pub(crate) fn finish(&mut self) -> Result<()> {
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

/// A run that fails still has the checkpoint that it had begun.
impl Drop for Saver {
    fn drop(&mut self) {
        if let Err(error) = self.finish() {
            tracing::warn!("a checkpoint was not written: {error}");
        }
    }
}

impl Common {
    /// Writes a checkpoint, puts it in place, and deletes those that are too many.
    fn write(&self, snapshot: &Snapshot, step: u64, validation_loss: Option<f64>) -> Result<()> {
        // A run that goes on from here expects the lines of all steps before; whoever opens a file can bring it to the disk.
        let synced = File::open(&self.metrics).and_then(|metrics| metrics.sync_data());
        synced.map_err(CheckpointError::file(&self.metrics, "bring it to the disk"))?;
        self.directory.make()?;
        let temporary = self.directory.temporary(step);
        let written = self.write_files(&temporary, snapshot, step, validation_loss);
        if let Err(error) = written.and_then(|()| self.directory.publish(&temporary, step)) {
            // The error that matters is the one above; there may be nothing to delete.
            let _ = fs::remove_dir_all(&temporary);
            return Err(error);
        }
        self.directory.retain(self.keep)
    }

    fn write_files(
        &self,
        temporary: &Path,
        snapshot: &Snapshot,
        step: u64,
        validation_loss: Option<f64>,
    ) -> Result<()> {
        fs::create_dir(temporary).map_err(CheckpointError::file(temporary, "make the directory"))?;
        let state = format::write(&temporary.join(STATE), &snapshot.entries, &snapshot.values)?;
        let corpus = self.dataset.corpus_sha256().map(str::to_owned);
        let manifest = Manifest::new(step, self.configuration.clone(), corpus, validation_loss, state);
        let path = temporary.join(MANIFEST);
        let mut file = File::create_new(&path).map_err(CheckpointError::file(&path, "create it"))?;
        file.write_all(&manifest.to_text()).map_err(CheckpointError::file(&path, "write to it"))?;
        file.sync_all().map_err(CheckpointError::file(&path, "bring it to the disk"))
    }
}
