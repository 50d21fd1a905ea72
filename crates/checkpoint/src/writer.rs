//! Writes checkpoints during training, on one thread of each rank and one checkpoint at a time.
//!
//! If there is one file, a thread of rank 0 writes and publishes it. If there are several, each rank writes
//! its own. Once all threads have finished, the ranks exchange their reports ([`Writer::report`]), and rank 0
//! publishes the checkpoint on a thread ([`Writer::complete`]).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use device::HostBuffer;
use system::{fail_point, threads};

use crate::contents::Contents;
use crate::destination::{Destination, Files, Step};
use crate::directory::Directory;
use crate::error::{CheckpointError, Result};
use crate::snapshot::{FileNumber, Snapshot};
use crate::validations::Validations;

/// A rank's written files or its error, as sent to rank 0.
type Report = std::result::Result<Files, String>;

type Thread<T> = JoinHandle<(Snapshot, Result<T>)>;

/// A checkpoint that is being written.
#[derive(Debug)]
enum Work {
    /// A thread that completes the checkpoint.
    Completion { path: PathBuf, thread: Thread<()> },
    /// A thread that writes this rank's file, one of several, unless abandoned.
    File { step: Step, is_abandoned: Arc<AtomicBool>, thread: Thread<Files> },
    /// This rank has reported its file; rank 0 waits for all reports.
    Reported { step: Step, snapshot: Snapshot },
}

/// Writes a rank's part of the checkpoints of a run, on separate threads.
#[derive(Debug)]
pub struct Writer {
    destination: Destination,
    /// Memory of the last written snapshot, for the next one.
    spare: Snapshot,
    work: Option<Work>,
    /// The error of the last checkpoint, if a thread could not be started or panicked.
    failed: Option<CheckpointError>,
    /// Whether a checkpoint of several files was begun but not yet reported.
    is_unreported: bool,
    /// Gradient norms of the last steps, for the next checkpoint.
    gradient_norms: Vec<Option<f32>>,
}

impl Writer {
    /// Returns the writer of rank 0 for the run in `run_dir`.
    pub fn new(run_dir: &Path, contents: Contents) -> Self {
        let directory = Directory::in_run(run_dir);
        // A killed process may have published a new checkpoint without deleting the oldest.
        if let Err(error) = directory.retain(contents.keep) {
            tracing::warn!("an old checkpoint is still there: {error}");
        }
        Self::with(Destination { directory, contents: Some(contents) })
    }

    /// Returns the writer of a rank other than 0. `process` is rank 0's process id.
    pub fn beside(run_dir: &Path, process: u32) -> Self {
        Self::with(Destination { directory: Directory::written_by(run_dir, process), contents: None })
    }

    fn with(destination: Destination) -> Self {
        Writer {
            destination,
            spare: Snapshot::default(),
            work: None,
            failed: None,
            is_unreported: false,
            gradient_norms: Vec::new(),
        }
    }

    /// Returns whether this rank's thread is still writing, without waiting.
    pub fn is_working(&self) -> bool {
        match &self.work {
            Some(Work::Completion { thread, .. }) => !thread.is_finished(),
            Some(Work::File { thread, .. }) => !thread.is_finished(),
            Some(Work::Reported { .. }) | None => false,
        }
    }

    /// Returns whether a checkpoint of several files was begun but not yet reported. All ranks return the
    /// same.
    pub fn is_unreported(&self) -> bool {
        self.is_unreported
    }

    /// Returns whether a checkpoint is being written, without waiting.
    pub fn is_busy(&self) -> bool {
        self.is_working() || self.is_unreported
    }

    /// Waits for the checkpoint being written and returns an empty snapshot to fill. If that checkpoint
    /// failed, logs a warning, because the next one replaces it.
    pub fn begin(&mut self) -> Snapshot {
        if let Err(error) = self.finish() {
            tracing::warn!("a checkpoint was not written: {error}");
        }
        let mut snapshot = std::mem::take(&mut self.spare);
        snapshot.clear();
        snapshot
    }

    /// Takes back a snapshot that will not be written, to reuse its memory.
    pub fn discard_snapshot(&mut self, snapshot: Snapshot) {
        self.spare = snapshot;
    }

    /// Provides the memory for snapshots. Without it, the first snapshot allocates the memory.
    pub fn set_memory(&mut self, memory: HostBuffer) {
        self.spare.set_memory(memory);
    }

    /// Sets the gradient norms of the last steps, for the next checkpoint.
    pub fn set_gradient_norms(&mut self, norms: Vec<Option<f32>>) {
        self.gradient_norms = norms;
    }

    /// Starts writing the state after `step` steps. `is_best`: whether the last of `validations` is of this
    /// state and has the lowest loss.
    pub fn write(&mut self, snapshot: Snapshot, step: u64, validations: Validations, is_best: bool) {
        let gradient_norms = std::mem::take(&mut self.gradient_norms);
        let step = Step { step, validations, is_best, began: Instant::now(), gradient_norms };
        self.is_unreported = snapshot.file != FileNumber::Only;
        if !self.is_unreported && self.destination.contents.is_none() {
            // Rank 0 alone writes a single file.
            self.spare = snapshot;
            return;
        }
        let destination = self.destination.clone();
        let is_abandoned = Arc::new(AtomicBool::new(false));
        let abandoned = Arc::clone(&is_abandoned);
        if self.is_unreported {
            let written_step = step.clone();
            let write = move || {
                let written = destination.write_file(&snapshot, &written_step, &abandoned);
                (snapshot, written)
            };
            let thread = self.start(&step, write);
            self.work = thread.map(|thread| Work::File { step, is_abandoned, thread });
            return;
        }
        let written_step = step.clone();
        let write = move || {
            let files = destination.write_file(&snapshot, &written_step, &abandoned);
            let completed = destination.complete(&snapshot, &written_step, files);
            (snapshot, completed)
        };
        self.work = self.completion(&step, write);
    }

    /// Waits for this rank's file and returns its report, which is sent to rank 0.
    pub fn report(&mut self) -> Vec<u8> {
        self.is_unreported = false;
        let report: Report = match self.work.take() {
            Some(Work::File { step, thread, .. }) => self.file(step, thread),
            other => {
                self.work = other;
                Err("its thread was not started".to_owned())
            }
        };
        fail_point::reach("checkpoint file reported");
        // Serializing strings and numbers does not fail.
        serde_json::to_vec(&report).unwrap_or_default()
    }

    /// Waits for the thread that writes this rank's file.
    fn file(&mut self, step: Step, thread: Thread<Files>) -> Report {
        let Ok((snapshot, written)) = thread.join() else {
            let what = "its writer panicked".to_owned();
            self.failed =
                Some(CheckpointError::Thread { path: self.destination.path(&step), what: what.clone() });
            return Err(what);
        };
        match self.destination.contents {
            Some(_) => self.work = Some(Work::Reported { step, snapshot }),
            None => self.spare = snapshot,
        }
        written.map_err(|error| error.to_string())
    }

    /// Starts to complete, on rank 0, the checkpoint whose files all ranks have reported.
    pub fn complete(&mut self, reports: &[Vec<u8>]) {
        let Some(Work::Reported { step, snapshot }) = self.work.take() else { return };
        let files = files_of(&self.destination.path(&step), reports);
        let destination = self.destination.clone();
        let written_step = step.clone();
        let complete = move || {
            let completed = destination.complete(&snapshot, &written_step, files);
            (snapshot, completed)
        };
        self.work = self.completion(&step, complete);
    }

    fn completion(
        &mut self,
        step: &Step,
        complete: impl FnOnce() -> (Snapshot, Result<()>) + Send + 'static,
    ) -> Option<Work> {
        let path = self.destination.path(step);
        self.start(step, complete).map(|thread| Work::Completion { path, thread })
    }

    fn start<T: Send + 'static>(
        &mut self,
        step: &Step,
        body: impl FnOnce() -> (Snapshot, Result<T>) + Send + 'static,
    ) -> Option<Thread<T>> {
        let unstarted = |error| {
            let what = format!("the thread to write it cannot be started: {error}");
            CheckpointError::Thread { path: self.destination.path(step), what }
        };
        match threads::spawn("checkpoint", body).map_err(unstarted) {
            Ok(thread) => Some(thread),
            Err(error) => {
                self.failed = Some(error);
                None
            }
        }
    }

    /// Waits for the checkpoint being written. A checkpoint of several files that was not reported is
    /// abandoned.
    pub fn finish(&mut self) -> std::result::Result<(), CheckpointError> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let is_first = self.destination.contents.is_some();
        match self.work.take() {
            None => Ok(()),
            Some(Work::Completion { path, thread }) => {
                let panicked = |_| CheckpointError::Thread { path, what: "its writer panicked".to_owned() };
                let (snapshot, completed) = thread.join().map_err(panicked)?;
                self.spare = snapshot;
                completed
            }
            Some(Work::File { step, is_abandoned, thread }) => {
                self.is_unreported = false;
                // Its result matters only together with those of the other ranks, for which the device may
                // wait forever.
                is_abandoned.store(true, Ordering::Relaxed);
                let _ = thread.join();
                if is_first { Err(self.abandoned(&step)) } else { Ok(()) }
            }
            Some(Work::Reported { step, .. }) => Err(self.abandoned(&step)),
        }
    }

    fn abandoned(&self, step: &Step) -> CheckpointError {
        self.destination.discard(step);
        let what = "the run ended before all ranks had written it".to_owned();
        CheckpointError::Thread { path: self.destination.path(step), what }
    }
}

/// Dropped in a failing run, it still completes a checkpoint of a single file.
impl Drop for Writer {
    fn drop(&mut self) {
        if let Err(error) = self.finish() {
            tracing::warn!("a checkpoint was not written: {error}");
        }
    }
}

/// Merges the reports of all ranks into the list of files.
///
/// # Errors
/// The first failure in rank order.
pub(crate) fn files_of(path: &Path, reports: &[Vec<u8>]) -> Result<Files> {
    let mut files = Files::new();
    for (rank, report) in reports.iter().enumerate() {
        let report: Report = serde_json::from_slice(report).unwrap_or_else(|error| Err(error.to_string()));
        let failed = |what| CheckpointError::Rank { path: path.to_owned(), rank, what };
        files.append(&mut report.map_err(failed)?);
    }
    Ok(files)
}
