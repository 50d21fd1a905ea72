//! Calls between graphs, made again on a device. Its own state holds them without it ([`crate::repeat`]).

use std::error::Error;

use crate::device::{Device, OnDevice};
use crate::repeat::Repeat;

/// A call between graphs: an event, a wait, work on another stream than compute, a call of a process group.
#[derive(Debug)]
pub struct RepeatedCall(pub(crate) Repeat);

impl RepeatedCall {
    /// Makes the call again on its device. The caller makes sure that nobody else has its memory.
    pub fn repeat(&mut self, device: &Device) -> Result<(), Box<dyn Error + Send + Sync>> {
        match &mut self.0 {
            Repeat::Record(stream) => device.record(*stream).map(drop)?,
            Repeat::Wait { stream, of } => device.wait_again(*stream, *of)?,
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
