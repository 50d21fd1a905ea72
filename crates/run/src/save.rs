//! Saves checkpoints during a run, on every rank.

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use checkpoint::{CheckpointError, Contents, Snapshot, Writer};
use collective::ControlChannel;
use telemetry::metrics::MetricsSync;
use worker::state::answering::wait_together;
use worker::{Setup, Worker};

use crate::answering::while_answering;
use crate::error::Result;
use crate::history::History;
use crate::memory_saver::MemorySaver;
use crate::reference;

/// Copies and writes a rank's part of the checkpoints of a run.
#[derive(Debug)]
pub(crate) struct Saver {
    writer: Writer,
    /// The snapshot whose copies have been enqueued.
    taken: Option<Snapshot>,
    /// Whether this is rank 0, which decides when to save, logs checkpoints and completes them.
    is_first: bool,
    /// Interval of timed checkpoints; `None` if they are off.
    every: Option<Duration>,
    /// Time at which the last checkpoint, or else the run, began.
    last: Instant,
    /// Whether a delayed checkpoint has been logged.
    is_reported: bool,
    /// Contents of rank 0's checkpoints other than the state, for states in memory.
    contents: Option<Contents>,
    /// Hash of the reference model's scores, stored in all checkpoints. Set on rank 0.
    reference_sha256: Arc<OnceLock<String>>,
    /// Saves states in host memory; `None` if the job keeps none.
    memory: Option<MemorySaver>,
    /// The longest time in which a checkpoint blocked training on the host.
    longest_stall: Option<Duration>,
}

impl Saver {
    /// Returns rank 0's saver for the run in `run_dir`. Before each checkpoint it syncs the metrics file with
    /// `metrics`. `None` if the run keeps no checkpoints or computes nothing.
    ///
    /// # Errors
    /// The data cannot be read.
    pub(crate) fn new(setup: &Setup, run_dir: &Path, metrics: MetricsSync) -> Result<Option<Self>> {
        let config = &setup.config;
        if !is_kept(setup) {
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
            reference_sha256: Arc::default(),
            left_out: setup.left_out.to_vec(),
        };
        let seconds = 60.0 * config.checkpoint.minutes;
        // An interval too long for the clock is never due.
        let every = Duration::try_from_secs_f64(seconds).ok().filter(|every| !every.is_zero());
        let writer = Writer::new(run_dir, contents.clone());
        let reference_sha256 = Arc::clone(&contents.reference_sha256);
        let is_first = true;
        let contents = Some(contents);
        Ok(Some(Saver { is_first, every, contents, reference_sha256, ..Self::with(writer) }))
    }

    /// Returns each rank's saver; rank 0's is `first`. Every rank must call this.
    pub(crate) fn shared(
        setup: &Setup,
        run_dir: &Path,
        first: Option<Saver>,
        control: &mut dyn ControlChannel,
    ) -> Result<Option<Self>> {
        if !is_kept(setup) {
            return Ok(None);
        }
        // Names of temporary files contain the process of rank 0.
        let mut process = std::process::id().to_le_bytes().to_vec();
        control.broadcast(0, &mut process)?;
        let process = process.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
        let beside = || Some(Self::with(Writer::beside(run_dir, process)));
        let Some(mut saver) = (if control.rank() == 0 { first } else { beside() }) else { return Ok(None) };
        let contents = saver.contents.take();
        saver.memory = MemorySaver::shared(setup, (process, contents), control)?;
        Ok(Some(saver))
    }

    /// Allocates this rank's memory for checkpoints on a separate thread. Every rank must call this.
    pub(crate) fn prepare(&mut self, worker: &mut Worker) -> Result<()> {
        let bytes = worker.snapshot_bytes()?;
        let allocate = worker.device().host_memory();
        let memory = while_answering(worker.control(), (bytes > 0).then_some(move || allocate(bytes)))?;
        memory.into_iter().for_each(|memory| self.writer.set_memory(memory));
        self.memory.as_mut().map_or(Ok(()), |saver| saver.prepare(worker))
    }

    fn with(writer: Writer) -> Self {
        let last = Instant::now();
        let is_reported = false;
        Saver {
            writer,
            taken: None,
            is_first: false,
            every: None,
            last,
            is_reported,
            contents: None,
            reference_sha256: Arc::default(),
            memory: None,
            longest_stall: None,
        }
    }

    /// Sets the reference scores, whose hash all checkpoints store.
    pub(crate) fn set_reference(&self, scores: &[f32]) {
        if self.is_first {
            // Scores are set once, before the first checkpoint.
            self.reference_sha256.get_or_init(|| reference::sha256(scores));
        }
    }

    /// Returns whether a timed checkpoint is due.
    pub(crate) fn is_due(&self) -> bool {
        self.every.is_some_and(|every| self.last.elapsed() >= every)
    }

    /// Returns whether a checkpoint is being written.
    pub(crate) fn is_busy(&self) -> bool {
        self.writer.is_busy()
    }

    /// Returns whether this rank's thread is still writing.
    pub(crate) fn is_working(&self) -> bool {
        self.writer.is_working()
    }

    /// Returns whether a checkpoint was begun whose files the ranks have not yet reported as written. All
    /// ranks return the same.
    pub(crate) fn is_unreported(&self) -> bool {
        self.writer.is_unreported()
    }

    /// Returns whether this rank's thread is still copying a state to host memory.
    pub(crate) fn is_copying(&self) -> bool {
        self.memory.as_ref().is_some_and(MemorySaver::is_working)
    }

    /// Starts copying this rank's part of the state after `steps` steps to host memory, unless the previous
    /// copy is still running. Every rank must call this, and then [`Saver::write_in_memory`].
    pub(crate) fn take_in_memory(&mut self, worker: &mut Worker, steps: u64) -> Result<()> {
        let began = Instant::now();
        let memory = self.memory.as_mut().filter(|memory| !memory.is_unreported());
        memory.map_or(Ok(()), |memory| memory.take(worker, steps))?;
        self.longest_stall = self.longest_stall.max(Some(began.elapsed()));
        Ok(())
    }

    /// Starts keeping the state copied by [`Saver::take_in_memory`] with the losses of `history`; discards it
    /// if `history` is `None`.
    pub(crate) fn write_in_memory(&mut self, history: Option<&History>) {
        self.memory.iter_mut().for_each(|memory| memory.write(history));
    }

    /// Publishes a state in memory once all ranks have copied it. Every rank must call this.
    pub(crate) fn publish_in_memory(&mut self, control: &mut dyn ControlChannel) -> Result<()> {
        let unreported = self.memory.as_mut().filter(|memory| memory.is_unreported());
        unreported.map_or(Ok(()), |memory| memory.report(control))
    }

    /// Logs, at most once, that the checkpoint due after `step` steps waits for the one being written.
    pub(crate) fn put_off(&mut self, step: u64) {
        if self.is_first && !std::mem::replace(&mut self.is_reported, true) {
            tracing::warn!(
                "the checkpoint of step {step} is put off until the last one is on the disk, which is slow; \
                 later ones likewise"
            );
        }
    }

    /// Waits until the previous checkpoint is written, then starts copying this rank's part of the state
    /// after `steps` steps. Does not wait for the device. If the previous checkpoint failed, logs a warning,
    /// because this one replaces it. With `is_last`, the wait is not recorded as a stall, because no step
    /// follows. Every rank must call this, and then [`Saver::write`].
    pub(crate) fn take(&mut self, worker: &mut Worker, steps: u64, is_last: bool) -> Result<()> {
        let mut began = Instant::now();
        self.settle(worker.control())?;
        if is_last {
            began = Instant::now();
        }
        let mut snapshot = self.writer.begin();
        worker.take_snapshot(&mut snapshot, steps)?;
        self.taken = Some(snapshot);
        self.longest_stall = self.longest_stall.max(Some(began.elapsed()));
        Ok(())
    }

    /// Starts writing the state copied by [`Saver::take`] with the losses of `history`; discards it if
    /// `history` is `None`. Every rank must call this.
    pub(crate) fn write(&mut self, history: Option<&History>) {
        let Some(mut snapshot) = self.taken.take() else { return };
        let Some(history) = history else { return self.writer.discard_snapshot(snapshot) };
        snapshot.set_losses(&history.losses);
        self.writer.set_gradient_norms(history.norms.kept());
        self.writer.write(snapshot, history.steps, history.validations, history.is_best);
        self.last = Instant::now();
    }

    /// Waits until all ranks have written their files of a checkpoint. Rank 0 then starts to complete it.
    /// Every rank must call this.
    pub(crate) fn report(&mut self, control: &mut dyn ControlChannel) -> Result<()> {
        if !self.writer.is_unreported() {
            return Ok(());
        }
        wait_together(control, &mut || !self.writer.is_working())?;
        let own = self.writer.report();
        if let Some(reports) = control.gather(0, &own)? {
            self.writer.complete(&reports);
        }
        Ok(())
    }

    /// Returns the longest time in which a checkpoint blocked training; `None` if no checkpoint was taken.
    pub(crate) fn longest_stall(&self) -> Option<Duration> {
        self.longest_stall
    }

    /// Waits until no checkpoint is being written on any rank. Every rank must call this.
    fn settle(&mut self, control: &mut dyn ControlChannel) -> Result<()> {
        self.report(control)?;
        Ok(wait_together(control, &mut || !self.writer.is_busy())?)
    }

    /// Waits for the checkpoint being written.
    ///
    /// # Errors
    /// The checkpoint could not be written.
    pub(crate) fn finish(&mut self) -> std::result::Result<(), CheckpointError> {
        self.writer.finish()
    }
}

/// Returns whether the run keeps checkpoints and has a state to save.
fn is_kept(setup: &Setup) -> bool {
    let checkpoint = &setup.config.checkpoint;
    (checkpoint.is_kept() || checkpoint.keep_best) && !setup.placement.is_meta()
}
