//! Events. CPU and Meta finish each call before the next, so there an event has always happened; the calls
//! are made all the same, because a GPU needs them.

use std::rc::Rc;

use crate::cuda::Point;
use crate::stream::StreamKind;

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
