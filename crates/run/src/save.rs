//! Checkpoints during a run, on rank 0.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use checkpoint::{CheckpointError, Contents, Writer};
use telemetry::metrics::MetricsSync;
use worker::{Setup, Worker};

use crate::error::Result;
use crate::history::History;

/// Takes and writes the checkpoints of a run.
#[derive(Debug)]
pub(crate) struct Saver {
    writer: Writer,
    /// Longest time between two checkpoints; `None`: any.
    every: Option<Duration>,
    /// The start of the last checkpoint, or of the run.
    last: Instant,
    /// Whether the delay of a checkpoint has been logged.
    is_reported: bool,
}

impl Saver {
    /// Returns the saver of the run in `run_dir`, which first syncs its metrics by `metrics`; `None` if the
    /// run keeps no checkpoints, or computes nothing.
    ///
    /// # Errors
    /// Data that cannot be read.
    pub(crate) fn new(setup: &Setup, run_dir: &Path, metrics: MetricsSync) -> Result<Option<Self>> {
        let config = &setup.config;
        if !(config.checkpoint.is_kept() || config.checkpoint.keep_best) || setup.placement.is_meta() {
            return Ok(None);
        }
        let contents = Contents {
            keep: config.checkpoint.keep,
            configuration: config.identity(),
            libraries: setup.placement.description().libraries,
            // A resumed run expects the metrics of all earlier steps.
            before: Arc::new(move || metrics.sync().map_err(|error| error.to_string())),
            base: setup.base.as_ref().map(|base| base.id().to_owned()),
            corpus: setup.dataset.mark()?.cloned(),
        };
        let seconds = 60.0 * config.checkpoint.minutes;
        // An interval too long for the clock is never due.
        let every = Duration::try_from_secs_f64(seconds).ok().filter(|every| !every.is_zero());
        let writer = Writer::new(run_dir, contents);
        Ok(Some(Saver { writer, every, last: Instant::now(), is_reported: false }))
    }

    /// Returns whether a checkpoint is due by time.
    pub(crate) fn is_due(&self) -> bool {
        self.every.is_some_and(|every| self.last.elapsed() >= every)
    }

    /// Returns whether a checkpoint is being written.
    pub(crate) fn is_busy(&self) -> bool {
        self.writer.is_busy()
    }

    /// Logs once that a checkpoint due after `step` steps waits for the one being written.
    pub(crate) fn put_off(&mut self, step: u64) {
        if !std::mem::replace(&mut self.is_reported, true) {
            tracing::warn!(
                "the checkpoint of step {step} is put off until the last one is on the disk, which is slow; \
                 later ones likewise"
            );
        }
    }

    /// Copies the state of a run, of which `worker` is rank 0, and starts to write it. The checkpoint before
    /// has been written; if that failed, it is a warning, because this one replaces it.
    ///
    /// # Errors
    /// The device's.
    pub(crate) fn save(&mut self, worker: &mut Worker, history: &History) -> Result<()> {
        let mut snapshot = self.writer.begin();
        worker.take_snapshot(&mut snapshot, &history.losses)?;
        self.writer.write(snapshot, history.steps, history.validations, history.is_best);
        self.last = Instant::now();
        Ok(())
    }

    /// Waits for the checkpoint being written.
    ///
    /// # Errors
    /// A checkpoint that could not be written.
    pub(crate) fn finish(&mut self) -> std::result::Result<(), CheckpointError> {
        self.writer.finish()
    }
}
