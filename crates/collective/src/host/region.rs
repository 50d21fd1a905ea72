//! Bytes into and out of regions of host memory; nothing on Meta.

use device::{Backend, Region};
use half::bf16;

use crate::error::{CollectiveError, Result};
use crate::operands::{Caller, Reach, check_reach};
use crate::payload::{Payload, PayloadPool};

/// Whether nothing stands behind a region.
pub(crate) fn on_meta(region: &Region<'_>) -> bool {
    region.buffer.backend() == Backend::Meta
}

/// A copy of at most one payload of a region; empty on Meta.
pub(crate) fn read(region: Region<'_>, pool: &mut PayloadPool) -> device::Result<Payload> {
    if on_meta(&region) {
        return Ok(pool.take(0));
    }
    let mut payload = pool.take(region.bytes);
    // Every element type has 16 bits or more, so bytes are moved as pairs.
    let values = region.buffer.read::<bf16>(region.offset, region.bytes / 2)?;
    payload.bytes_mut().copy_from_slice(bytemuck::cast_slice(&values));
    Ok(payload)
}

/// Writes bytes into a region of their length; nothing on Meta.
pub(crate) fn write(bytes: &[u8], region: Region<'_>) -> device::Result<()> {
    if !on_meta(&region) {
        let mut values = region.buffer.write::<bf16>(region.offset, region.bytes / 2)?;
        bytemuck::cast_slice_mut::<bf16, u8>(&mut values).copy_from_slice(bytes);
    }
    Ok(())
}

/// Copies between two regions of one length, which may be one and the same.
pub(crate) fn copy(caller: Caller, source: Region<'_>, target: Region<'_>) -> Result<()> {
    let same = std::ptr::eq(source.buffer, target.buffer) && source.offset == target.offset;
    if same || on_meta(&source) {
        return Ok(());
    }
    check_reach(caller, Reach::Host, &[source, target])?;
    let refused = |source| CollectiveError::device(caller.rank, caller.call)(source);
    let from = source.buffer.read::<bf16>(source.offset, source.bytes / 2).map_err(refused)?;
    let mut to = target.buffer.write::<bf16>(target.offset, target.bytes / 2).map_err(refused)?;
    to.copy_from_slice(&from);
    Ok(())
}
