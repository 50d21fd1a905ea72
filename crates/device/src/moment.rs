//! Moments: points in time on the host or in a stream's work.

use std::time::Instant;

use crate::cuda::Point;
use crate::stream::StreamKind;

/// A point in time: a reading of the host's clock, or an event in a stream's work.
#[derive(Debug)]
pub(crate) enum Moment {
    Host(Instant),
    Stream(Point),
}

/// A wait of the compute stream for another stream.
#[derive(Debug)]
pub(crate) struct Wait {
    /// The stream that it waited for.
    pub(crate) stream: StreamKind,
    pub(crate) before: Moment,
    pub(crate) after: Moment,
}
