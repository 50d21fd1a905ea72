//! Taking the checkpoints of a run, on rank 0.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use checkpoint::{CheckpointError, Contents, Writer};
use telemetry::metrics::MetricsSync;
use worker::{Setup, Worker};

use crate::course::Course;
use crate::error::Result;

/// Takes and writes the checkpoints of a run.
#[derive(Debug)]
pub(crate) struct Saver {
    writer: Writer,
    /// Longest time between two checkpoints; `None`: any.
    every: Option<Duration>,
    /// When the last checkpoint, or the run, began.
    last: Instant,
    /// Whether the log says that a checkpoint was put off.
    is_said: bool,
}

impl Saver {
    /// The saver of the run in `run_dir`, whose metrics `metrics` brings to the disk; `None` if it keeps no
    /// checkpoints, or computes nothing. Errors: data that cannot be read.
    pub(crate) fn new(setup: &Setup, run_dir: &Path, metrics: MetricsSync) -> Result<Option<Self>> {
        let config = &setup.config;
        if !(config.checkpoint.is_kept() || config.checkpoint.keep_best) || setup.placement.is_meta() {
            return Ok(None);
        }
        let contents = Contents {
            keep: config.checkpoint.keep,
            configuration: config.identity(),
            libraries: setup.placement.description().libraries,
            // A run that goes on expects the lines of all steps before.
            before: Arc::new(move || metrics.sync().map_err(|error| error.to_string())),
            corpus: setup.dataset.mark()?.cloned(),
        };
        let seconds = 60.0 * config.checkpoint.minutes;
        // An interval that no clock can count is none.
        let every = Duration::try_from_secs_f64(seconds).ok().filter(|every| !every.is_zero());
        let writer = Writer::new(run_dir, contents);
        Ok(Some(Saver { writer, every, last: Instant::now(), is_said: false }))
    }

    /// Returns whether a checkpoint is due by time.
    pub(crate) fn is_due(&self) -> bool {
        self.every.is_some_and(|every| self.last.elapsed() >= every)
    }

    /// Returns whether a checkpoint is being written.
    pub(crate) fn is_busy(&self) -> bool {
        self.writer.is_busy()
    }

    /// Says once that a checkpoint which is due after `step` steps waits for the one that is being written.
    pub(crate) fn put_off(&mut self, step: u64) {
        if !std::mem::replace(&mut self.is_said, true) {
            tracing::warn!(
                "the checkpoint of step {step} is put off until the last one is on the disk, which is slow; \
                 later ones likewise"
            );
        }
    }

    /// Copies the state of a run, of which `worker` is rank 0, and starts to write it. The checkpoint before
    /// has been written; a failure of that one is a warning: this one takes its place. Errors: the device's.
    pub(crate) fn save(&mut self, worker: &mut Worker, course: &Course) -> Result<()> {
        let mut snapshot = self.writer.begin();
        worker.take_snapshot(&mut snapshot, &course.losses)?;
        self.writer.write(snapshot, course.steps, course.validations, course.is_best);
        self.last = Instant::now();
        Ok(())
    }

    /// Waits for the checkpoint in flight. Errors: why it could not be written.
    pub(crate) fn finish(&mut self) -> std::result::Result<(), CheckpointError> {
        self.writer.finish()
    }
}
