//! Marks: points in the compute stream's work, with the time at which the device reached them.

use std::time::{Duration, Instant};

use crate::device::{Device, OnDevice};
use crate::error::Result;
use crate::moment::Moment;
use crate::stream::StreamKind;

/// A point in the compute stream's work, with the time at which it was reached. The time is the device's on a
/// GPU, and else the host's, because calls there end before the next begins.
#[derive(Debug)]
pub struct Mark {
    device: Device,
    moment: Moment,
}

impl Device {
    /// Marks the end of the work enqueued on the compute stream so far, without waiting. [`Mark::until`]
    /// returns the time between two marks once both are reached. On a GPU a mark takes one event of a pool.
    pub fn mark(&self) -> Result<Mark> {
        Ok(self.marked(self.moment()?))
    }

    pub(crate) fn marked(&self, moment: Moment) -> Mark {
        Mark { device: self.clone(), moment }
    }

    pub(crate) fn moment(&self) -> Result<Moment> {
        let Some(cuda) = self.gpu() else { return Ok(Moment::Host(Instant::now())) };
        self.interrupt_capture("a mark")?;
        let point = cuda.marks.record(cuda.streams.handle(StreamKind::Compute));
        Ok(Moment::Stream(point.on(self)?))
    }
}

impl Mark {
    /// Returns the time from this mark to a later one of the same device, by that device's clock. `None`
    /// while the later mark has not been reached, and for devices of different backends. Never waits.
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
                timed().on(&self.device)?
            }
            _ => None,
        };
        let positive = |milliseconds: f32| Duration::from_secs_f64(f64::from(milliseconds.max(0.0)) / 1e3);
        Ok(milliseconds.map(positive))
    }
}
