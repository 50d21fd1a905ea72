//! Moments: points in time by the host's clock or in a stream's work.

use std::time::Instant;

use crate::cuda::Point;

/// A point in time: by the host's clock, or in a stream's work.
#[derive(Debug)]
pub(crate) enum Moment {
    Host(Instant),
    Stream(Point),
}

/// The begin and end of a wait of the compute stream.
pub(crate) type Wait = (Moment, Moment);
