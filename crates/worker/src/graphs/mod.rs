//! CUDA graphs of training steps, evaluated micro-batches and decode steps, with the host work and the calls
//! between ranks that occur between graphs.
//!
//! A step is captured while it runs: each graph is launched as soon as it ends, before the next host work
//! (`Recorder::host`). A replayed step runs the host work again, launches the graphs, and repeats the
//! allocator's operations ([`memory::Script`]), so that counters, peaks and traces are the same as in any
//! other step.
//!
//! Work on other streams between graphs is enqueued again, with its events and waits. All of it ends within
//! the step, so a replay needs no event of the previous step. Weights gathered after a step are waited for
//! where the captured step waited if nothing else was enqueued in between (`StepGraphs::is_next`), and
//! otherwise before the step.

mod captured;
mod recorder;
pub mod refusals;

use config::Graphs;
use device::{Backend, Device};

use crate::error::{Result, WorkerError};
pub use captured::{CapturedStep, Outcome};
pub use recorder::Recorder;

/// Maximum number of captures. After that, steps run call by call, because their memory has other addresses
/// each time.
const MOST_CAPTURES: u32 = 16;

/// Captures and replays one kind of step on a rank.
#[derive(Debug)]
pub struct StepGraphs {
    /// Name of the steps in messages, plural.
    name: &'static str,
    choice: Graphs,
    /// Whether no further steps are captured.
    refused: bool,
    /// (sequence length in tokens, captured step), one for each length.
    captured: Vec<(usize, CapturedStep)>,
    /// Digest of the allocator's blocks before the last step.
    before: Option<u64>,
    captures: u32,
    replays: u64,
    /// Number of stream events and waits on the device after the last step.
    stream_calls: Option<u64>,
    /// The last logged reason for not capturing.
    logged: Option<String>,
}

/// How a step enqueues its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepMode {
    /// Makes each device call.
    Plain,
    /// Makes each device call, and captures the calls in CUDA graphs.
    Recorded,
    /// Launches the captured graphs again.
    Replayed,
}

impl StepGraphs {
    /// Returns the state before the first step on `device`. Messages call the steps `name`. `never`: a reason
    /// why they cannot be captured, if there is one.
    ///
    /// # Errors
    /// `choice` requires graphs, but the steps cannot be captured.
    pub fn new(
        name: &'static str,
        choice: Graphs,
        device: &Device,
        never: Option<&'static str>,
    ) -> Result<Self> {
        let runs = device.backend() == Backend::Cuda;
        let mut graphs = StepGraphs {
            name,
            choice,
            refused: !runs,
            captured: Vec::new(),
            before: None,
            captures: 0,
            replays: 0,
            stream_calls: None,
            logged: None,
        };
        if !device.is_cuda_like() {
            if choice == Graphs::On && !device.is_meta() {
                tracing::warn!(
                    "train.graphs = \"on\" changes nothing on the CPU: only GPUs have CUDA graphs"
                );
            }
        } else if let Some(reason) = never.or_else(|| device.refuses_capture()) {
            graphs.refuse(reason, runs)?;
        }
        Ok(graphs)
    }

    /// Enables capturing on Meta too, where graphs are empty.
    pub fn capture_on_meta(&mut self) {
        self.refused = false;
    }

    /// Returns whether steps may be captured.
    pub(crate) fn is_possible(&self) -> bool {
        !self.refused
    }

    /// Returns the number of replayed steps.
    #[must_use]
    pub fn replays(&self) -> u64 {
        self.replays
    }

    /// Returns how the next step, with sequences of `length` tokens, runs. `reason`: why it cannot be
    /// captured, if so; an empty reason is not logged.
    pub fn next(&mut self, device: &Device, length: usize, reason: Option<&'static str>) -> StepMode {
        if self.refused {
            return StepMode::Plain;
        }
        let digest = device.with_allocator(|allocator| allocator.digest_of_blocks());
        // A step that takes memory from the driver cannot be captured; the next begins with other blocks.
        let is_steady = self.before.replace(digest) == Some(digest);
        if let Some(reason) = reason {
            self.log(reason);
            return StepMode::Plain;
        }
        let is_captured = |(other, _): &(usize, CapturedStep)| *other == length;
        if let Some(index) = self.captured.iter().position(is_captured) {
            if self.captured[index].1.script.fits(digest) {
                return StepMode::Replayed;
            }
            self.captured.remove(index);
        }
        if self.captures == MOST_CAPTURES {
            self.refused = true;
            self.log("its memory has other addresses each time");
        }
        // Weights that something else has waited for since the last step would not be waited for.
        if self.refused || !is_steady || !self.is_next(device) { StepMode::Plain } else { StepMode::Recorded }
    }

    /// Marks the end of a step.
    pub(crate) fn end_step(&mut self, device: &Device) {
        self.stream_calls = Some(device.stream_calls());
    }

    /// Returns whether no stream has waited for an event since the last step.
    pub(crate) fn is_next(&self, device: &Device) -> bool {
        self.stream_calls.is_none_or(|calls| calls == device.stream_calls())
    }

    /// Keeps a captured step with sequences of `length` tokens, or logs why there is none.
    ///
    /// # Errors
    /// A configuration that demands graphs.
    pub fn keep(&mut self, length: usize, captured: Outcome) -> Result<()> {
        self.captures += 1;
        match captured {
            Ok(None) => Ok(()),
            Ok(Some(step)) => {
                let (graphs, calls) = step.sizes();
                tracing::info!("{} are replayed as {graphs} CUDA graphs of {calls} calls", self.name);
                self.captured.push((length, step));
                Ok(())
            }
            Err(reason) => self.refuse(&reason, true),
        }
    }

    /// Replays the captured step for sequences of `length` tokens, with `first_number` as the number of its
    /// first micro-batch.
    ///
    /// # Errors
    /// Errors of the host's work and of repeated calls.
    pub fn replay(&mut self, device: &Device, length: usize, first_number: u64) -> Result<()> {
        let is_next = self.is_next(device);
        if let Some((_, captured)) = self.captured.iter_mut().find(|(other, _)| *other == length) {
            captured.replay(device, (first_number, is_next))?;
            self.replays += 1;
        }
        Ok(())
    }

    /// Stops capturing steps for `reason`, which is logged if `is_logged`.
    fn refuse(&mut self, reason: &str, is_logged: bool) -> Result<()> {
        self.refused = true;
        if self.choice == Graphs::On {
            return Err(WorkerError::Refused(format!(
                "train.graphs is \"on\", and {} cannot be captured in CUDA graphs: {reason}; use \"auto\"",
                self.name
            )));
        }
        if is_logged {
            self.log(reason);
        }
        Ok(())
    }

    /// Logs why steps are not captured, unless the last message had the same reason.
    fn log(&mut self, reason: &str) {
        if self.choice != Graphs::Off && !reason.is_empty() && self.logged.as_deref() != Some(reason) {
            tracing::info!("{} are not captured in CUDA graphs: {reason}", self.name);
            self.logged = Some(reason.to_owned());
        }
    }
}
