//! The order of work on the reduce stream and on the compute stream.

use device::{Device, StreamKind};

use crate::error::Result;

/// Runs `enqueue`. Its work on the reduce stream starts after all earlier compute work, and later compute
/// work waits for it.
pub(crate) fn between_compute(device: &Device, enqueue: impl FnOnce() -> Result<()>) -> Result<()> {
    device.wait(StreamKind::Reduce, &device.record(StreamKind::Compute)?)?;
    enqueue()?;
    device.wait(StreamKind::Compute, &device.record(StreamKind::Reduce)?)?;
    Ok(())
}
