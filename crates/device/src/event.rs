//! Events. CPU and Meta finish each call before the next, so their events are always done. The calls exist
//! there because a GPU needs them.

use std::rc::Rc;
use std::sync::Arc;

use crate::cuda::{Point, SharedPoint};
use crate::stream::StreamKind;

/// A point in a stream's work, for which other streams and the host can wait.
#[derive(Clone, Debug)]
pub struct Event {
    pub(crate) stream: StreamKind,
    pub(crate) sequence: u64,
    /// The driver's event, on a GPU.
    pub(crate) point: Option<Rc<Point>>,
}

impl Event {
    /// Returns the stream on which the event was recorded.
    pub fn stream(&self) -> StreamKind {
        self.stream
    }

    /// Returns the number of events recorded on the stream before this one.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }
}

/// A point in a stream's work for which streams of other ranks of this process can wait
/// ([`Device::wait_shared`](crate::Device::wait_shared)), even after the recording device was dropped.
#[derive(Clone, Debug)]
pub struct SharedEvent {
    /// The driver's event, on a GPU.
    pub(crate) point: Option<Arc<SharedPoint>>,
}
