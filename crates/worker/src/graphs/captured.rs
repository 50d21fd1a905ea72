//! A captured step and its replay.

use std::fmt;

use collective::CollectiveError;
use device::{CapturedPart, Device, DeviceError};
use memory::Script;

use crate::error::{Result, WorkerError};

/// Host work within a step, which every replay runs again.
pub(super) type HostWork = Box<dyn FnMut() -> Result<()>>;

/// A part of a captured step.
pub(super) enum ReplayedPart {
    /// A graph, or a call between graphs.
    Piece(CapturedPart),
    /// Work of the host between graphs, such as reading a micro-batch.
    Host {
        /// Number of allocator operations before the work.
        operations: usize,
        work: HostWork,
    },
}

impl fmt::Debug for ReplayedPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReplayedPart::Piece(piece) => piece.fmt(f),
            ReplayedPart::Host { operations, .. } => write!(f, "Host({operations})"),
        }
    }
}

/// A step captured as CUDA graphs.
#[derive(Debug)]
pub struct CapturedStep {
    pub(super) parts: Vec<ReplayedPart>,
    /// Whether there are calls between graphs.
    pub(super) has_calls: bool,
    /// Allocations and frees of the step.
    pub(super) script: Script,
    /// FLOPs of the step's matmuls.
    pub(super) flops: u64,
    /// Number of the step's first micro-batch when it was captured.
    pub(super) first_number: u64,
}

impl CapturedStep {
    /// Returns the number of graphs, and the total number of calls in them.
    pub(super) fn sizes(&self) -> (usize, usize) {
        let graphs = self.parts.iter().filter_map(|part| match part {
            ReplayedPart::Piece(CapturedPart::Graph(graph)) => Some(graph.calls()),
            ReplayedPart::Piece(CapturedPart::Call(_)) | ReplayedPart::Host { .. } => None,
        });
        graphs.fold((0, 0), |(count, sum), calls| (count + 1, sum + calls))
    }

    /// Replays the step with `first_number` as the number of its first micro-batch: launches the graphs, runs
    /// the host work, and repeats the calls between graphs and the allocator's operations. `is_next`: whether
    /// nothing else was enqueued since the previous step.
    ///
    /// # Errors
    /// Host work, the driver or the allocator fails.
    pub(super) fn replay(&mut self, device: &Device, (first_number, is_next): (u64, bool)) -> Result<()> {
        let shift = first_number.wrapping_sub(self.first_number);
        if self.has_calls {
            if !is_next {
                device.join_streams()?;
            }
            device.fork_streams()?;
        }
        for part in &mut self.parts {
            match part {
                ReplayedPart::Piece(CapturedPart::Graph(graph)) => graph.launch(shift)?,
                ReplayedPart::Piece(CapturedPart::Call(call)) => call.repeat(device).map_err(repeated)?,
                ReplayedPart::Host { operations, work } => {
                    device.repeat(&mut self.script, Some(*operations))?;
                    work()?;
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

/// Converts the error of a repeated call.
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

/// The result of a capture: `Some(step)`; `None` if this step cannot be replayed because its memory grew, but
/// a later one may; or an error that states why steps cannot be replayed.
pub type Outcome = std::result::Result<Option<CapturedStep>, String>;
