//! `metrics.jsonl`: one line per step, written on a separate thread so that no step waits for a disk.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;

use serde::Serialize;
use serde_json::{Map, Value};
use system::file_error::FileContext;
use system::{output, threads};

use crate::error::Result;
use crate::lines_of_steps;
pub use crate::lines_of_steps::check;
use crate::rank_step::RankStep;
use crate::run_files::to_json;

/// Key of the gradient norms of groups of parameters in `metrics.jsonl`, an object by name.
pub const GROUP_NORMS: &str = "gradient_norms";
/// Key of the losses of modules that predict later tokens.
pub const LATER_LOSSES: &str = "later_losses";

/// A request to the writer thread.
enum Request {
    Line(Vec<u8>),
    /// Syncs all earlier lines to disk, then answers.
    Sync(SyncSender<io::Result<()>>),
    End,
}

/// Appends lines of JSON, each with a single write, so that a killed run keeps its lines.
#[derive(Debug)]
pub struct MetricsWriter {
    requests: Sender<Request>,
    path: PathBuf,
    /// The writer thread, until it is joined. It returns the error of the first failed write.
    thread: Option<JoinHandle<io::Result<()>>>,
}

/// A handle of a [`MetricsWriter`] through which another thread syncs lines to disk.
#[derive(Clone, Debug)]
pub struct MetricsSync {
    requests: Sender<Request>,
    path: PathBuf,
}

impl MetricsWriter {
    /// Creates an empty file.
    pub fn create(path: &Path) -> Result<Self> {
        let file = output::open_own(path, OpenOptions::new().write(true).create(true).truncate(true));
        let file = file.context(path, "create it")?;
        Self::start(path, file)
    }

    /// Continues after the line of step `step`, removing later steps and an incomplete line. Damaged lines
    /// before it are moved to `metrics.damaged.jsonl` beside the file, with a warning. Starts an empty file
    /// if `step` is 0 or the file does not exist.
    ///
    /// # Errors
    /// The file cannot be read or written, or has an overlong line ([`check`]).
    pub fn resume(path: &Path, step: u64) -> Result<Self> {
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false);
        let mut open = || output::open_own(path, options).context(path, "open it");
        drop(open()?);
        let end = lines_of_steps::keep_until(path, step)?;
        // Moving damaged lines replaces the file, so it is opened again.
        let mut file = open()?;
        // Truncation is atomic, as a rename is.
        file.set_len(end).context(path, "cut it")?;
        file.seek(SeekFrom::Start(end)).context(path, "seek in it")?;
        Self::start(path, file)
    }

    pub(crate) fn start(path: &Path, file: File) -> Result<Self> {
        let (requests, received) = channel();
        let thread = threads::spawn("metrics", move || serve(file, &received));
        let thread = thread.context(path, "start a thread to write it")?;
        Ok(MetricsWriter { requests, path: path.to_owned(), thread: Some(thread) })
    }

    /// Queues a line, such as a [`StepMetrics`], for the writer thread without waiting.
    pub fn write(&mut self, line: &impl Serialize) -> Result<()> {
        let mut text = to_json(&self.path, serde_json::to_vec(line))?;
        text.push(b'\n');
        self.write_bytes(text)
    }

    /// Queues raw bytes for the writer thread without waiting.
    pub(crate) fn write_bytes(&mut self, bytes: Vec<u8>) -> Result<()> {
        if self.requests.send(Request::Line(bytes)).is_ok() {
            return Ok(());
        }
        self.end()
    }

    /// Returns a handle that syncs the lines written so far to disk.
    #[must_use]
    pub fn syncer(&self) -> MetricsSync {
        MetricsSync { requests: self.requests.clone(), path: self.path.clone() }
    }

    /// Waits until all lines are written to the file.
    pub fn finish(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        // A thread that has already ended returns its error below.
        let _ = self.requests.send(Request::End);
        let Some(thread) = self.thread.take() else { return Ok(()) };
        let ended = thread.join().unwrap_or_else(|_| Err(io::Error::other("its writer panicked")));
        Ok(ended.context(&self.path, "write a line")?)
    }
}

/// Finishes the file on drop, so that a failed run keeps the lines of its steps.
impl Drop for MetricsWriter {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::warn!("{error}");
        }
    }
}

impl MetricsSync {
    /// Syncs the lines written so far to disk.
    pub fn sync(&self) -> Result<()> {
        let (answer, answered) = sync_channel(1);
        let ended = || io::Error::other("its writer has ended");
        let sent = self.requests.send(Request::Sync(answer)).map_err(|_| ended());
        let synced = sent.and_then(|()| answered.recv().unwrap_or_else(|_| Err(ended())));
        Ok(synced.context(&self.path, "sync it to the disk")?)
    }
}

fn serve(mut file: File, requests: &Receiver<Request>) -> io::Result<()> {
    for request in requests {
        match request {
            Request::Line(text) => file.write_all(&text)?,
            // The receiver may have been dropped.
            Request::Sync(answer) => drop(answer.send(file.sync_data())),
            Request::End => break,
        }
    }
    Ok(())
}

/// The values of a step: a line of `metrics.jsonl`. Non-finite values are written as `null`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct StepMetrics {
    /// The step, from 1.
    pub step: u64,
    /// Time at which the line was written, in UTC (RFC 3339).
    pub time: String,
    /// Seconds from the end of the previous step to the end of this one; `None` if not meaningful, as for the
    /// first step, which warms up.
    pub seconds: Option<f64>,
    /// Mean loss over the step's micro-batches.
    pub loss: f32,
    /// Learning rate of the update.
    pub learning_rate: f32,
    /// Gradient norm before clipping.
    pub gradient_norm: f32,
    /// Tokens (or samples) per second over all ranks; `None` for the first step, which warms up.
    pub tokens_per_second: Option<f64>,
    /// See [`crate::Statistic::AllocatedBytes`]. This and the following byte counts are rank 0's after the
    /// step.
    pub allocated_bytes: u64,
    /// See [`crate::Statistic::ReservedBytes`].
    pub reserved_bytes: u64,
    /// See [`crate::Statistic::PeakAllocatedBytes`].
    pub peak_allocated_bytes: u64,
    /// See [`crate::Statistic::PeakReservedBytes`].
    pub peak_reserved_bytes: u64,
    /// Peak of rank 0's allocated bytes in this step alone.
    pub step_peak_allocated_bytes: u64,
    /// Peak of rank 0's reserved bytes in this step alone.
    pub step_peak_reserved_bytes: u64,
    /// Model FLOPs utilization: achieved FLOP/s of matmuls over the rate of the devices' large matmuls.
    /// `None` for the first step, and for devices of unknown rate.
    pub mfu: Option<f64>,
    /// Memory and phases of every rank; present after the first step, every `telemetry.every`-th and the
    /// last.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ranks: Vec<RankStep>,
    /// Additional values of this step, such as `validation_loss`.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}
