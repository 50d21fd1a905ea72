//! A step that has been captured, and its replay.

use std::fmt;

use collective::CollectiveError;
use device::{CapturedPart, Device, DeviceError};
use memory::Script;

use crate::error::{Result, WorkerError};

/// Work of the host within a step, which every replay of the step does again.
pub(super) type HostWork = Box<dyn FnMut() -> Result<()>>;

/// A part of a captured step.
pub(super) enum Part {
    /// A graph, or a call between graphs.
    Piece(CapturedPart),
    /// Work of the host.
    Host {
        /// Number of the allocator's operations before the work.
        operations: usize,
        work: HostWork,
    },
}

impl fmt::Debug for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Part::Piece(piece) => piece.fmt(f),
            Part::Host { operations, .. } => write!(f, "Host({operations})"),
        }
    }
}

/// A captured step.
#[derive(Debug)]
pub struct CapturedStep {
    pub(super) parts: Vec<Part>,
    /// True if there are calls between graphs.
    pub(super) has_calls: bool,
    /// The allocator's operations.
    pub(super) script: Script,
    /// FLOPs of the step's matmuls.
    pub(super) flops: u64,
    /// Number of the step's first micro-batch.
    pub(super) first_number: u64,
}

impl CapturedStep {
    /// Number of graphs, and of their calls.
    pub(super) fn sizes(&self) -> (usize, usize) {
        let graphs = self.parts.iter().filter_map(|part| match part {
            Part::Piece(CapturedPart::Graph(graph)) => Some(graph.calls()),
            Part::Piece(CapturedPart::Call(_)) | Part::Host { .. } => None,
        });
        graphs.fold((0, 0), |(count, sum), calls| (count + 1, sum + calls))
    }

    /// Replays the step as one whose first micro-batch is `first_number`: launches its graphs, does the
    /// host's work again, and repeats the calls between graphs and the allocator's operations. `is_next`:
    /// whether nothing happened since the step before.
    ///
    /// # Errors
    /// Errors of the host's work, the driver's, the allocator's.
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
                Part::Piece(CapturedPart::Graph(graph)) => graph.launch(shift)?,
                Part::Piece(CapturedPart::Call(call)) => call.repeat(device).map_err(repeated)?,
                Part::Host { operations, work } => {
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
pub type Outcome = std::result::Result<Option<CapturedStep>, String>;
