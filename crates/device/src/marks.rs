//! When work was reached: points in the compute stream's work that carry their time.

use std::time::{Duration, Instant};

use crate::device::Device;
use crate::error::Result;
use crate::moment::Moment;
use crate::stream::StreamKind;

/// A point in the compute stream's work that knows when it was reached: on a GPU by the device's clock,
/// elsewhere, where each call ends before the next begins, by the host's.
#[derive(Debug)]
pub struct Mark {
    device: Device,
    moment: Moment,
}

impl Device {
    /// Marks the end of what the compute stream has been given so far. It waits for nothing and costs an
    /// event of a pool; what is marked is timed when both ends are over, see [`Mark::until`]. Errors: the
    /// driver's.
    pub fn mark(&self) -> Result<Mark> {
        Ok(self.marked(self.moment()?))
    }

    pub(crate) fn marked(&self, moment: Moment) -> Mark {
        Mark { device: self.clone(), moment }
    }

    pub(crate) fn moment(&self) -> Result<Moment> {
        let Some(cuda) = self.gpu() else { return Ok(Moment::Host(Instant::now())) };
        let point = cuda.marks.record(cuda.streams.handle(StreamKind::Compute));
        Ok(Moment::Stream(point.map_err(|error| self.cuda_error(error))?))
    }
}

impl Mark {
    /// The time from this mark to a later one of the same device, by the clock of that; `None` as long as the
    /// work before the later one is not over, and between devices of different backends. It never waits.
    /// Errors: what failed in that work.
    pub fn until(&self, later: &Mark) -> Result<Option<Duration>> {
        let milliseconds = match (&self.moment, &later.moment) {
            (Moment::Host(earlier), Moment::Host(later)) => {
                return Ok(Some(later.saturating_duration_since(*earlier)));
            }
            (Moment::Stream(earlier), Moment::Stream(later)) => {
                let timed = || match earlier.is_over()? && later.is_over()? {
                    true => earlier.until(later).map(Some),
                    false => Ok(None),
                };
                timed().map_err(|error| self.device.cuda_error(error))?
            }
            _ => None,
        };
        let positive = |milliseconds: f32| Duration::from_secs_f64(f64::from(milliseconds.max(0.0)) / 1e3);
        Ok(milliseconds.map(positive))
    }
}
