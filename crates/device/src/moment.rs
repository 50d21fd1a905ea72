//! Moments: points in time by the host's clock or in a stream's work.

use std::time::Instant;

use crate::cuda::Point;
use crate::stream::StreamKind;

/// A point in time: by the host's clock, or in a stream's work.
#[derive(Debug)]
pub(crate) enum Moment {
    Host(Instant),
    Stream(Point),
}

/// A wait of the compute stream.
#[derive(Debug)]
pub(crate) struct Wait {
    /// The stream whose work it waited for.
    pub(crate) stream: StreamKind,
    pub(crate) before: Moment,
    pub(crate) after: Moment,
}
