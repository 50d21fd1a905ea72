//! Logical streams and events. CPU and Meta finish each call before the next, so there an event has
//! always happened; the calls are made all the same, because a GPU needs them.

use std::rc::Rc;

use crate::cuda::Point;

/// The three queues of work that every device has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StreamKind {
    /// Forward, backward and optimizer.
    Compute,
    /// Reduction of gradients over ranks, and new weights from one to another.
    Reduce,
    /// Host copies and transfers between stages.
    Transfer,
}

impl StreamKind {
    /// All of them.
    pub const ALL: [StreamKind; 3] = [StreamKind::Compute, StreamKind::Reduce, StreamKind::Transfer];

    /// The allocator's handle: stable, so that ties never depend on where the driver put a stream.
    pub const fn handle(self) -> memory::Stream {
        memory::Stream(match self {
            StreamKind::Compute => 0,
            StreamKind::Reduce => 1,
            StreamKind::Transfer => 2,
        })
    }
}

/// A point in a stream's work.
#[derive(Clone, Debug)]
pub struct Event {
    pub(crate) stream: StreamKind,
    pub(crate) sequence: u64,
    /// The driver's, on a GPU.
    pub(crate) point: Option<Rc<Point>>,
}

impl Event {
    /// The stream it was recorded on.
    pub fn stream(&self) -> StreamKind {
        self.stream
    }

    /// Number of events that the stream had recorded before.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }
}
