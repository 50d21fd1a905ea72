//! Taking the checkpoints of a run, on rank 0.

use std::path::Path;
use std::sync::Arc;

use crate::error::Result;
use checkpoint::{CheckpointError, Contents, Writer};
use worker::{Setup, Worker};

use crate::session::Course;

/// Takes and writes the checkpoints of a run.
#[derive(Debug)]
pub(crate) struct Saver(Writer);

impl Saver {
    /// The saver of the run in `run_dir`; `None` if it takes no checkpoints, or computes nothing.
    pub(crate) fn new(setup: &Setup, run_dir: &Path) -> Option<Self> {
        let config = &setup.config;
        if config.checkpoint.every == 0 || setup.placement.is_meta() {
            return None;
        }
        let dataset = setup.dataset.clone();
        Some(Saver(Writer::new(
            run_dir,
            Contents {
                keep: config.checkpoint.keep,
                configuration: config.identity(),
                libraries: setup.placement.description().libraries,
                corpus_sha256: Arc::new(move || {
                    let read = dataset.corpus_sha256();
                    read.map(|hash| hash.map(str::to_owned)).map_err(|error| error.to_string())
                }),
            },
        )))
    }

    /// Copies the state of a run, of which `worker` is rank 0, and starts to write it after the checkpoint in
    /// flight has been written. A failure of that one is a warning: this one takes its place. Errors: the
    /// device's.
    pub(crate) fn save(&mut self, worker: &mut Worker, course: &Course) -> Result<()> {
        let mut snapshot = self.0.begin();
        worker.take_snapshot(&mut snapshot, &course.losses)?;
        self.0.write(snapshot, course.steps, course.validation_loss);
        Ok(())
    }

    /// Waits for the checkpoint in flight. Errors: why it could not be written.
    pub(crate) fn finish(&mut self) -> std::result::Result<(), CheckpointError> {
        self.0.finish()
    }
}
