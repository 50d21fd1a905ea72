//! Checkpoints in the memory of hosts. Each host stores the files of its own ranks in a file system in
//! memory, which outlives the ranks' processes.
//!
//! A host's directory contains `checkpoints/step-NNNNNN/`, as a run directory does, with the index and
//! manifest of all files.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use device::HostBuffer;
use serde::{Deserialize, Serialize};
use system::file_error::FileContext;
use system::threads;

use crate::contents::Contents;
use crate::destination::{Destination, Files, Step};
use crate::directory::Directory;
use crate::error::{CheckpointError, Result};
use crate::index::INDEX;
use crate::manifest::{MANIFEST, Manifest};
use crate::snapshot::{FileNumber, Snapshot};
use crate::validations::Validations;
use crate::writer::files_of;

/// Thread that writes this rank's file.
type Thread = JoinHandle<(Snapshot, Result<Files>)>;

/// The index and manifest of a state, as file contents.
#[derive(Debug, Serialize, Deserialize)]
struct Description {
    index: Option<String>,
    manifest: String,
}

/// Writes a rank's part of the states in memory on a separate thread. The calls in order:
/// [`MemoryWriter::begin`], [`MemoryWriter::write`] and [`MemoryWriter::report`] on all ranks,
/// [`MemoryWriter::describe`] on rank 0, and [`MemoryWriter::publish`] on one rank of each host.
#[derive(Debug)]
pub struct MemoryWriter {
    destination: Destination,
    is_first: bool,
    spare: Snapshot,
    work: Option<(Step, Option<Thread>)>,
    is_abandoned: Arc<AtomicBool>,
    neighbour: Option<Neighbour>,
}

/// Function that sends a file to the neighbouring host.
type Send = dyn Fn(&FileOfState<'_>) -> io::Result<()> + std::marker::Send + Sync;

/// The neighbouring host, which keeps a copy of this rank's files.
#[derive(Clone)]
struct Neighbour(Arc<Send>);

impl std::fmt::Debug for Neighbour {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Neighbour")
    }
}

/// A file of a state in memory.
#[derive(Clone, Copy, Debug)]
pub struct FileOfState<'a> {
    /// Number of steps completed.
    pub step: u64,
    /// Name of the file.
    pub name: &'a str,
    /// Number of bytes.
    pub bytes: u64,
    /// Path of the file.
    pub path: &'a Path,
}

/// A host's directory that stores files sent by other hosts.
#[derive(Clone, Debug)]
pub struct IncomingFiles(Directory);

impl IncomingFiles {
    /// Stores the file `name` of `bytes` bytes, of the state of step `step`.
    ///
    /// # Errors
    /// No file of a state has this name, `from` ends early, or the file cannot be written.
    pub fn store(&self, (step, name, bytes): (u64, &str, u64), from: &mut dyn Read) -> io::Result<()> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.';
        if !(name.starts_with("state") && name.bytes().all(allowed)) {
            return Err(io::Error::other("no file of a state has this name"));
        }
        let temporary = self.0.temporary(step);
        fs::create_dir_all(&temporary)?;
        let stored = io::copy(from, &mut File::create(temporary.join(name))?)?;
        if stored == bytes { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }
}

impl MemoryWriter {
    /// Returns a rank's writer to its host's directory. `process` is the process id of rank 0; `contents` is
    /// set only on rank 0.
    pub fn new(directory: &Path, process: u32, contents: Option<Contents>) -> Self {
        let is_first = contents.is_some();
        let destination = Destination { directory: Directory::written_by(directory, process), contents };
        let (spare, is_abandoned) = Default::default();
        MemoryWriter { destination, is_first, spare, work: None, is_abandoned, neighbour: None }
    }

    /// Deletes the states after `step`, the step from which the run continues. They are incomplete or
    /// damaged, and the run reaches these steps again. One rank of each host calls this.
    pub fn forget_after(&self, step: u64) -> Result<()> {
        self.destination.directory.delete_those(|there| there > step)
    }

    /// Returns the store for files that other hosts send to this one.
    pub fn incoming(&self) -> IncomingFiles {
        IncomingFiles(self.destination.directory.clone())
    }

    /// Sends a copy of every file with `send`, on the writing thread. If sending fails, the state is kept
    /// without the copy.
    pub fn set_neighbour(
        &mut self,
        send: impl Fn(&FileOfState<'_>) -> io::Result<()> + std::marker::Send + Sync + 'static,
    ) {
        self.neighbour = Some(Neighbour(Arc::new(send)));
    }

    /// Takes back a snapshot that will not be written, to reuse its memory.
    pub fn discard_snapshot(&mut self, snapshot: Snapshot) {
        self.spare = snapshot;
    }

    /// Provides the memory for snapshots. Without it, the first snapshot allocates the memory.
    pub fn set_memory(&mut self, memory: HostBuffer) {
        self.spare.set_memory(memory);
    }

    /// Returns whether this rank's thread is still writing.
    pub fn is_working(&self) -> bool {
        let thread = self.work.as_ref().and_then(|(_, thread)| thread.as_ref());
        thread.is_some_and(|thread| !thread.is_finished())
    }

    /// Returns whether a state was begun but not yet reported. All ranks return the same.
    pub fn is_unreported(&self) -> bool {
        self.work.is_some()
    }

    /// Returns an empty snapshot to fill.
    pub fn begin(&mut self) -> Snapshot {
        let mut snapshot = std::mem::take(&mut self.spare);
        snapshot.clear();
        snapshot
    }

    /// Starts writing the state after `step` steps.
    pub fn write(
        &mut self,
        snapshot: Snapshot,
        (step, validations): (u64, Validations),
        gradient_norms: Vec<Option<f32>>,
    ) {
        let step = Step { step, validations, is_best: false, began: Instant::now(), gradient_norms };
        // Rank 0 alone writes a single file.
        if snapshot.file == FileNumber::Only && !self.is_first {
            self.spare = snapshot;
            self.work = Some((step, None));
            return;
        }
        let destination = self.destination.clone();
        let abandoned = Arc::clone(&self.is_abandoned);
        let written_step = step.clone();
        let neighbour = self.neighbour.clone();
        let write = move || {
            let before = destination.contents.as_ref().map_or(Ok(()), |contents| (contents.before)());
            let path = destination.path(&written_step);
            let ready = before.map_err(|what| CheckpointError::Thread { path, what });
            let written = ready.and_then(|()| destination.write_file(&snapshot, &written_step, &abandoned));
            if let (Some(Neighbour(send)), Ok(files)) = (&neighbour, &written) {
                send_files(&destination, written_step.step, files, &**send);
            }
            (snapshot, written)
        };
        // A thread that does not start is reported as a file that is missing.
        let thread = threads::spawn("memory", write).ok();
        self.work = Some((step, thread));
    }

    /// Waits for this rank's file. Returns its report, which is sent to rank 0, and the state for
    /// [`Self::describe`] and [`Self::publish`].
    pub fn report(&mut self) -> (Vec<u8>, Option<Reported>) {
        let Some((step, thread)) = self.work.take() else { return (Vec::new(), None) };
        let joined = thread.map(JoinHandle::join);
        let (snapshot, written) = match joined {
            Some(Ok((snapshot, written))) => (snapshot, written.map_err(|error| error.to_string())),
            Some(Err(_)) => (Snapshot::default(), Err("its writer panicked".to_owned())),
            None if self.is_first => (Snapshot::default(), Err("its thread was not started".to_owned())),
            None => (std::mem::take(&mut self.spare), Ok(Files::new())),
        };
        // Serializing strings and numbers does not fail.
        (serde_json::to_vec(&written).unwrap_or_default(), Some(Reported { step, snapshot }))
    }

    /// Builds the index and the manifest of a state from the reports of all ranks, on rank 0. Returns both,
    /// encoded.
    ///
    /// # Errors
    /// A rank did not write its file.
    pub fn describe(&self, reported: &Reported, reports: &[Vec<u8>]) -> Result<Vec<u8>> {
        let Reported { step, snapshot } = reported;
        let path = self.destination.path(step);
        let unready = |what| CheckpointError::Thread { path: path.clone(), what };
        let contents =
            self.destination.contents.as_ref().ok_or_else(|| unready("this is not rank 0".to_owned()))?;
        let mut files = files_of(&path, reports)?;
        let counters = snapshot.counters().map_err(unready)?;
        let index = snapshot.index.as_ref().map(|index| {
            let (text, digest) = index.encode();
            files.insert(INDEX.to_owned(), digest);
            text
        });
        let manifest = Manifest::new(step.step, counters, contents, step.validations, files)
            .with_gradient_norms(&step.gradient_norms);
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        let description =
            Description { index: index.as_deref().map(text), manifest: text(&manifest.to_text()) };
        Ok(serde_json::to_vec(&description).unwrap_or_default())
    }

    /// Renames a state to its final name on this host, with rank 0's `description`, and deletes all other
    /// states.
    pub fn publish(&self, reported: &Reported, description: &[u8]) -> Result<()> {
        let directory = &self.destination.directory;
        let step = reported.step.step;
        let temporary = directory.temporary(step);
        let unread = |error: serde_json::Error| CheckpointError::damaged(&temporary, error.to_string());
        let Description { index, manifest } = serde_json::from_slice(description).map_err(unread)?;
        directory.make()?;
        fs::create_dir_all(&temporary).context(&temporary, "make the directory")?;
        for (name, text) in index.map(|index| (INDEX, index)).into_iter().chain([(MANIFEST, manifest)]) {
            let path = temporary.join(name);
            fs::write(&path, text).context(&path, "write it")?;
        }
        directory.publish(&temporary, step)?;
        directory.delete_those(|other| other != step)
    }

    /// Takes back the memory of a state that was published or discarded.
    pub fn end(&mut self, reported: Reported) {
        self.spare = reported.snapshot;
    }

    /// Deletes this host's files of an unpublished state.
    pub fn discard(&self, reported: &Reported) {
        self.destination.discard(&reported.step);
    }
}

/// Sends the files that this rank has written for a state.
fn send_files(destination: &Destination, step: u64, files: &Files, send: &Send) {
    for (name, digest) in files {
        let path = destination.directory.temporary(step).join(name);
        let file = FileOfState { step, name, bytes: digest.bytes, path: &path };
        if let Err(error) = send(&file) {
            tracing::warn!("the state of step {step} is in memory without a copy on another host: {error}");
        }
    }
}

/// Dropped in a failing run, it abandons a state that is still being copied.
impl Drop for MemoryWriter {
    fn drop(&mut self) {
        self.is_abandoned.store(true, Ordering::Relaxed);
        if let Some((_, Some(thread))) = self.work.take() {
            // Its result matters only together with those of the other ranks.
            let _ = thread.join();
        }
    }
}

/// A state for which this rank has reported its file.
#[derive(Debug)]
pub struct Reported {
    step: Step,
    snapshot: Snapshot,
}
