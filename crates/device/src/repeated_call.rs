//! Calls between graphs, which a replay repeats on a device. They do not hold the device, which holds them
//! ([`crate::repeat`]).

use std::error::Error;

use crate::device::{Device, OnDevice};
use crate::repeat::Repeat;

/// A call between graphs: an event, a wait, work on a stream other than compute, or a process group's call.
#[derive(Debug)]
pub struct RepeatedCall(pub(crate) Repeat);

impl RepeatedCall {
    /// Repeats the call on its device. The caller makes sure that its memory has not been reused.
    pub fn repeat(&mut self, device: &Device) -> Result<(), Box<dyn Error + Send + Sync>> {
        match &mut self.0 {
            Repeat::Record(stream) => device.record(*stream).map(drop)?,
            Repeat::Wait { stream, event } => device.wait_again(*stream, *event)?,
            Repeat::BeginNote => device.begin_note()?,
            Repeat::EndNote(stream) => device.end_note(*stream)?,
            Repeat::Launch(launch) => {
                let cuda = device.gpu_or_refuse("captured step")?;
                launch.enqueue(cuda).on(device)?;
            }
            Repeat::Copy { source, target, stream } => {
                device.copy_on(source.region(), target.region(), *stream)?;
            }
            Repeat::Other(again) => again()?,
        }
        Ok(())
    }
}
