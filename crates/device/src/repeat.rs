//! Calls between the graphs of captured work, and how a replay repeats them.

use std::error::Error;
use std::fmt;

use crate::buffer::{Buffer, Region};
use crate::call_log::LoggedEvent;
use crate::cuda::graph::CudaGraph;
use crate::cuda::stream_launch::StreamLaunch;
use crate::stream::StreamKind;

/// Repeats a process group's call with the same memory.
pub type Repetition = Box<dyn FnMut() -> Result<(), Box<dyn Error + Send + Sync>>>;

/// A part of captured work: a graph, or a call between graphs.
#[derive(Debug)]
pub(crate) enum Held {
    Graph(CudaGraph),
    Call(Repeat),
}

/// How a replay repeats a call.
pub(crate) enum Repeat {
    Record(StreamKind),
    Wait {
        stream: StreamKind,
        event: LoggedEvent,
    },
    /// Records the beginning of a wait.
    BeginNote,
    EndNote(StreamKind),
    Launch(StreamLaunch),
    Copy {
        source: OutlivingRegion,
        target: OutlivingRegion,
        stream: StreamKind,
    },
    /// Runs a process group's call.
    Other(Repetition),
}

impl fmt::Debug for Repeat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Repeat::Record(stream) => return write!(f, "Record({stream:?})"),
            Repeat::Wait { stream, event } => return write!(f, "Wait({stream:?} for {event:?})"),
            Repeat::BeginNote => "BeginNote",
            Repeat::EndNote(_) => "EndNote",
            Repeat::Launch(_) => "Launch",
            Repeat::Copy { .. } => "Copy",
            Repeat::Other(_) => "Other",
        };
        f.write_str(name)
    }
}

/// A region of memory for repeated calls, usable after its buffer was freed. It does not own the memory.
#[derive(Debug)]
pub struct OutlivingRegion {
    buffer: Buffer,
    offset: usize,
    bytes: usize,
}

impl OutlivingRegion {
    /// Returns the region. The caller makes sure that the memory has not been reused.
    pub fn region(&self) -> Region<'_> {
        self.buffer.region(self.offset, self.bytes)
    }
}

impl Region<'_> {
    /// Returns the region for repeated calls, independent of the buffer's lifetime.
    pub fn outlive(&self) -> OutlivingRegion {
        OutlivingRegion { buffer: self.buffer.unowned(), offset: self.offset, bytes: self.bytes }
    }
}
