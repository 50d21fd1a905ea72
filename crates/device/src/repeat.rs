//! Calls between the graphs of captured work, and how a replay makes them again.

use std::error::Error;
use std::fmt;

use crate::buffer::{Buffer, Region};
use crate::call_log::LoggedEvent;
use crate::cuda::graph::CudaGraph;
use crate::cuda::stream_launch::StreamLaunch;
use crate::stream::StreamKind;

/// A call of a process group, made again with the same memory.
pub type Repetition = Box<dyn FnMut() -> Result<(), Box<dyn Error + Send + Sync>>>;

/// Work that has been captured.
#[derive(Debug)]
pub(crate) enum Held {
    Graph(CudaGraph),
    Call(Repeat),
}

/// The way in which a replay makes a call again.
pub(crate) enum Repeat {
    Record(StreamKind),
    Wait {
        stream: StreamKind,
        of: LoggedEvent,
    },
    /// Notes the beginning of a wait.
    BeginNote,
    EndNote(StreamKind),
    Launch(StreamLaunch),
    Copy {
        source: OutlivingRegion,
        target: OutlivingRegion,
        stream: StreamKind,
    },
    /// Calls a process group.
    Other(Repetition),
}

impl fmt::Debug for Repeat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Repeat::Record(stream) => return write!(f, "Record({stream:?})"),
            Repeat::Wait { stream, of } => return write!(f, "Wait({stream:?} for {of:?})"),
            Repeat::BeginNote => "BeginNote",
            Repeat::EndNote(_) => "EndNote",
            Repeat::Launch(_) => "Launch",
            Repeat::Copy { .. } => "Copy",
            Repeat::Other(_) => "Other",
        };
        f.write_str(name)
    }
}

/// A region of memory that repeated calls use after its buffer has returned it. It does not own the memory.
#[derive(Debug)]
pub struct OutlivingRegion {
    buffer: Buffer,
    offset: usize,
    bytes: usize,
}

impl OutlivingRegion {
    /// Returns the region, as long as nobody else has the memory.
    pub fn region(&self) -> Region<'_> {
        self.buffer.region(self.offset, self.bytes)
    }
}

impl Region<'_> {
    /// Returns the region for repeated calls.
    pub fn outlive(&self) -> OutlivingRegion {
        OutlivingRegion { buffer: self.buffer.unowned(), offset: self.offset, bytes: self.bytes }
    }
}
