//! Captured steps: the calls of a step of training or of decoding as CUDA graphs, with the stops between them
//! at which the host does what differs from step to step, and the calls between ranks.
//!
//! A step is captured while it runs: each graph is launched as soon as it ends, at the next [`Stop`]. A
//! replayed step makes the same stops, launches the graphs, and repeats the allocator's operations
//! ([`memory::Script`]), so that counters, peaks and traces are those of any other step.
//!
//! Work of other streams between graphs is enqueued again, with its events and waits. All of it ends within
//! the step, so that a replay needs no event of the step before; weights that travel after a step are waited
//! for where the captured step waited, if nothing else happened in between ([`StepGraphs::is_next`]), and
//! else before the step.

pub(crate) mod refusals;

use std::cell::RefCell;

use collective::CollectiveError;
use config::Graphs;
use device::{Backend, Captured, Device, DeviceError, Piece, Written};
use memory::{Script, ScriptEnd};
use telemetry::Phase;

use crate::error::{Result, WorkerError};

/// Captures after which a step is no longer captured again: its memory has other addresses each time.
const MOST_CAPTURES: u32 = 16;

/// A point of a step at which the host does what differs from step to step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// A phase begins and is marked.
    Phase(Phase),
    /// The number of the step's targets is set.
    TargetCount,
    /// The inputs of a micro-batch are copied to the device.
    Inputs(usize),
    /// The pixels have been read.
    PixelsRead,
    /// The targets of a micro-batch are copied to the device.
    Targets(usize),
    /// The borders of a micro-batch's documents are copied to the device.
    Documents(usize),
    /// The marks of a micro-batch's tokens are copied to the device.
    Tokens(usize),
    /// The state is about to change, which waits for the copies of the last snapshot.
    Snapshot,
    /// The learning rate is set.
    LearningRate,
    /// The results of an evaluated micro-batch are copied to the host.
    Results,
}

impl Stop {
    /// Returns the stop of another micro-batch.
    pub(crate) fn of(self, micro_batch: usize) -> Self {
        match self {
            Stop::Inputs(_) => Stop::Inputs(micro_batch),
            Stop::Targets(_) => Stop::Targets(micro_batch),
            Stop::Documents(_) => Stop::Documents(micro_batch),
            Stop::Tokens(_) => Stop::Tokens(micro_batch),
            other => other,
        }
    }
}

/// A part of a captured step.
#[derive(Debug)]
enum Part {
    /// A graph, or a call between graphs.
    Piece(Piece),
    /// A stop.
    Stop {
        stop: Stop,
        /// Number of the allocator's operations before the stop.
        operations: usize,
        /// Addresses to which the stop copied from the host.
        written: Vec<Written>,
    },
}

/// A captured step.
#[derive(Debug)]
pub(crate) struct CapturedStep {
    parts: Vec<Part>,
    /// Whether there are calls between graphs.
    has_calls: bool,
    /// The allocator's operations.
    script: Script,
    /// FLOPs of the step's matmuls.
    flops: u64,
    /// Number of the step's first micro-batch.
    first_number: u64,
}

impl CapturedStep {
    /// Number of graphs, and of their calls.
    fn sizes(&self) -> (usize, usize) {
        let graphs = self.parts.iter().filter_map(|part| match part {
            Part::Piece(Piece::Graph(graph)) => Some(graph.calls()),
            Part::Piece(Piece::Call(_)) | Part::Stop { .. } => None,
        });
        graphs.fold((0, 0), |(count, sum), calls| (count + 1, sum + calls))
    }

    /// Replays the step as one whose first micro-batch is `first_number`: launches its graphs, calls `halt`
    /// at each stop with the addresses to which the stop copied from the host, and repeats the calls between
    /// graphs and the allocator's operations. `is_next`: whether nothing happened since the step before.
    ///
    /// # Errors
    /// Errors of `halt`, the driver's, the allocator's.
    pub(crate) fn replay(
        &mut self,
        device: &Device,
        (first_number, is_next): (u64, bool),
        mut halt: impl FnMut(Stop, &[Written]) -> Result<()>,
    ) -> Result<()> {
        let shift = first_number.wrapping_sub(self.first_number);
        if self.has_calls {
            if !is_next {
                device.join_streams()?;
            }
            device.fork_streams()?;
        }
        for part in &mut self.parts {
            match part {
                Part::Piece(Piece::Graph(graph)) => graph.launch(shift)?,
                Part::Piece(Piece::Call(call)) => call.repeat(device).map_err(repeated)?,
                Part::Stop { stop, operations, written } => {
                    device.repeat(&mut self.script, Some(*operations))?;
                    halt(*stop, written)?;
                }
            }
        }
        if self.has_calls {
            device.join_streams()?;
        }
        device.repeat(&mut self.script, None)?;
        device.count_flops(self.flops);
        Ok(())
    }
}

/// Returns the error of a call that was made again.
fn repeated(error: Box<dyn std::error::Error + Send + Sync>) -> WorkerError {
    let error = match error.downcast::<CollectiveError>() {
        Ok(error) => return WorkerError::from(*error),
        Err(error) => error,
    };
    match error.downcast::<DeviceError>() {
        Ok(error) => WorkerError::from(*error),
        Err(error) => WorkerError::Refused(error.to_string()),
    }
}

/// A captured step; `None` if a later one may be replayed but not this one, whose memory grew; or the reason
/// why steps cannot be replayed.
pub(crate) type Outcome = std::result::Result<Option<CapturedStep>, String>;

/// Captures a step while it runs.
#[derive(Debug)]
pub(crate) struct Recorder {
    device: Device,
    recorded: RefCell<Recorded>,
    /// FLOPs before the step.
    flops: u64,
}

#[derive(Debug, Default)]
struct Recorded {
    parts: Vec<Part>,
    /// The first call that could not be captured; the rest of the step is not captured.
    interrupted: Option<&'static str>,
}

impl Recorder {
    /// Starts to capture.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn start(device: &Device) -> Result<Self> {
        device.begin_capture()?;
        device.with_allocator(|allocator| allocator.begin_script());
        let (recorded, flops) = (RefCell::default(), device.flops());
        Ok(Recorder { device: device.clone(), recorded, flops })
    }

    /// Does the work of a stop, which is not captured, after launching the calls before it.
    ///
    /// # Errors
    /// Errors of the work; the driver's.
    pub(crate) fn pause<T>(&self, stop: Stop, body: impl FnOnce() -> Result<T>) -> Result<T> {
        if !self.end_graph()? {
            return body();
        }
        let operations = self.device.with_allocator(|allocator| allocator.script_length());
        let (done, written) = self.device.writes_of(body)?;
        self.recorded.borrow_mut().parts.push(Part::Stop { stop, operations, written });
        self.device.begin_capture()?;
        Ok(done)
    }

    /// Ends the present graph. Returns whether the step is still captured.
    fn end_graph(&self) -> Result<bool> {
        let mut recorded = self.recorded.borrow_mut();
        if recorded.interrupted.is_some() {
            return Ok(false);
        }
        match self.device.end_capture()? {
            Captured::Whole(pieces) => recorded.parts.extend(pieces.into_iter().map(Part::Piece)),
            Captured::Interrupted(call) => recorded.interrupted = Some(call),
        }
        Ok(recorded.interrupted.is_none())
    }

    /// Ends the capture of a step whose first micro-batch is `first_number`. The step has been enqueued
    /// whatever the result.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn finish(&self, first_number: u64) -> Result<Outcome> {
        let is_whole = self.end_graph()?;
        let script = self.device.with_allocator(|allocator| allocator.end_script());
        let Recorded { parts, interrupted } = self.recorded.take();
        if let Some(call) = interrupted.filter(|_| !is_whole) {
            return Ok(Err(format!("a step contains {call}, which cannot be captured")));
        }
        let script = match script {
            ScriptEnd::Whole(script) => script,
            ScriptEnd::Grown => return Ok(Ok(None)),
            ScriptEnd::Unclosed => {
                return Ok(Err("a step leaves other memory allocated than it found".to_owned()));
            }
        };
        let flops = self.device.flops() - self.flops;
        let has_calls = parts.iter().any(|part| matches!(part, Part::Piece(Piece::Call(_))));
        if has_calls {
            self.device.join_streams()?;
        }
        Ok(Ok(Some(CapturedStep { parts, has_calls, script, flops, first_number })))
    }

    /// Ends the capture after an error of the step, whose calls since the last stop are lost.
    pub(crate) fn abandon(&self) {
        self.device.abandon_capture();
        self.device.take_back_flops(self.flops);
        self.device.with_allocator(|allocator| drop(allocator.end_script()));
    }
}

/// Steps of one kind that a rank has captured.
#[derive(Debug)]
pub(crate) struct StepGraphs {
    /// Name of the steps in messages, in plural.
    name: &'static str,
    choice: Graphs,
    /// Whether no step is captured from now on.
    refused: bool,
    captured: Option<CapturedStep>,
    /// Digest of the blocks before the last step.
    before: Option<u64>,
    captures: u32,
    replays: u64,
    /// The device's number of events and waits after the last step.
    stream_calls: Option<u64>,
    /// The last reason that the log has.
    logged: Option<String>,
}

/// How a step runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Course {
    /// Call by call.
    Plain,
    /// Call by call, while it is captured.
    Recorded,
    /// From its graphs.
    Replayed,
}

impl StepGraphs {
    /// Returns the state before the first of a rank's steps on `device`, which messages call `name`.
    /// `never`: a reason why they are not captured, if there is one.
    ///
    /// # Errors
    /// A `choice` that demands graphs of steps that are not captured.
    pub(crate) fn new(
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
            captured: None,
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

    /// Captures steps on Meta too, where their graphs are empty.
    #[cfg(test)]
    pub(crate) fn capture_on_meta(&mut self) {
        self.refused = false;
    }

    /// Returns whether steps may be captured.
    pub(crate) fn is_possible(&self) -> bool {
        !self.refused
    }

    /// Number of replayed steps.
    pub(crate) fn replays(&self) -> u64 {
        self.replays
    }

    /// Returns how the next step runs. `reason`: one why it cannot be captured, if there is one; an empty one
    /// is not logged.
    pub(crate) fn next(&mut self, device: &Device, reason: Option<&'static str>) -> Course {
        if self.refused {
            return Course::Plain;
        }
        let digest = device.with_allocator(|allocator| allocator.digest_of_blocks());
        // A step that takes memory from the driver cannot be captured; the next begins with other blocks.
        let is_steady = self.before.replace(digest) == Some(digest);
        if let Some(reason) = reason {
            self.log(reason);
            return Course::Plain;
        }
        if self.captured.as_ref().is_some_and(|step| step.script.fits(digest)) {
            return Course::Replayed;
        }
        self.captured = None;
        if self.captures == MOST_CAPTURES {
            self.refused = true;
            self.log("its memory has other addresses each time");
        }
        // Weights that something else has waited for since the last step would not be waited for.
        if self.refused || !is_steady || !self.is_next(device) { Course::Plain } else { Course::Recorded }
    }

    /// Ends a step.
    pub(crate) fn end_step(&mut self, device: &Device) {
        self.stream_calls = Some(device.stream_calls());
    }

    /// Returns whether streams have waited for nothing since the last step.
    pub(crate) fn is_next(&self, device: &Device) -> bool {
        self.stream_calls.is_none_or(|calls| calls == device.stream_calls())
    }

    /// Keeps a captured step, or the reason why there is none.
    ///
    /// # Errors
    /// A configuration that demands graphs.
    pub(crate) fn keep(&mut self, captured: Outcome) -> Result<()> {
        self.captures += 1;
        match captured {
            Ok(None) => Ok(()),
            Ok(Some(step)) => {
                let (graphs, calls) = step.sizes();
                tracing::info!("{} are replayed as {graphs} CUDA graphs of {calls} calls", self.name);
                self.captured = Some(step);
                Ok(())
            }
            Err(reason) => self.refuse(&reason, true),
        }
    }

    /// Takes the captured step, to replay it.
    pub(crate) fn take(&mut self) -> Option<CapturedStep> {
        self.captured.take()
    }

    /// Returns the captured step after a replay.
    pub(crate) fn restore(&mut self, step: CapturedStep) {
        self.captured = Some(step);
        self.replays += 1;
    }

    /// Captures no step from now on, for a reason that `is_logged`.
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

    /// Logs why steps are not captured, once in succession.
    fn log(&mut self, reason: &str) {
        if self.choice != Graphs::Off && !reason.is_empty() && self.logged.as_deref() != Some(reason) {
            tracing::info!("{} are not captured in CUDA graphs: {reason}", self.name);
            self.logged = Some(reason.to_owned());
        }
    }
}
