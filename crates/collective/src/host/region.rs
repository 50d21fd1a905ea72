//! Reads and writes of host memory regions; Meta regions have no bytes.

use device::{Backend, Region};
use half::bf16;

use crate::caller::Caller;
use crate::collective::{Reach, check_reach};
use crate::error::Result;
use crate::payload::{Payload, PayloadPool};

/// Returns whether a region is on Meta and so has no bytes.
pub(crate) fn on_meta(region: &Region<'_>) -> bool {
    region.buffer.backend() == Backend::Meta
}

/// Copies a region of at most [`PAYLOAD_BYTES`](crate::payload::PAYLOAD_BYTES) bytes; on Meta the result is
/// empty.
pub(crate) fn read(region: Region<'_>, pool: &mut PayloadPool) -> device::Result<Payload> {
    if on_meta(&region) {
        return Ok(pool.take(0));
    }
    let mut payload = pool.take(region.bytes);
    // Every dtype is at least 16 bits wide, so bytes are moved in pairs.
    let values = region.buffer.read::<bf16>(region.offset, region.bytes / 2)?;
    payload.bytes_mut().copy_from_slice(bytemuck::cast_slice(&values));
    Ok(payload)
}

/// Writes `bytes` to a region of the same length; does nothing on Meta.
pub(crate) fn write(bytes: &[u8], region: Region<'_>) -> device::Result<()> {
    if !on_meta(&region) {
        let mut values = region.buffer.write::<bf16>(region.offset, region.bytes / 2)?;
        bytemuck::cast_slice_mut::<bf16, u8>(&mut values).copy_from_slice(bytes);
    }
    Ok(())
}

/// Copies between two regions of the same length; does nothing if they are the same.
pub(crate) fn copy(caller: Caller, source: Region<'_>, target: Region<'_>) -> Result<()> {
    let same = std::ptr::eq(source.buffer, target.buffer) && source.offset == target.offset;
    if same || on_meta(&source) {
        return Ok(());
    }
    check_reach(caller, Reach::Host, &[source, target])?;
    let from = source
        .buffer
        .read::<bf16>(source.offset, source.bytes / 2)
        .map_err(|error| caller.device_error(error))?;
    let mut to = target
        .buffer
        .write::<bf16>(target.offset, target.bytes / 2)
        .map_err(|error| caller.device_error(error))?;
    to.copy_from_slice(&from);
    Ok(())
}
