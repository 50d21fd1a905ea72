//! Events. CPU and Meta finish each call before the next, so their events are always done; the calls exist
//! because a GPU needs them.

use std::rc::Rc;

use crate::cuda::Point;
use crate::stream::StreamKind;

/// A point in a stream's work.
#[derive(Clone, Debug)]
pub struct Event {
    pub(crate) stream: StreamKind,
    pub(crate) sequence: u64,
    /// The driver's event, on a GPU.
    pub(crate) point: Option<Rc<Point>>,
}

impl Event {
    /// The stream that the event was recorded on.
    pub fn stream(&self) -> StreamKind {
        self.stream
    }

    /// Number of events recorded on the stream before this one.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }
}
