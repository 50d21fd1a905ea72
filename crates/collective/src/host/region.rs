//! Bytes into and out of regions of host memory; nothing on Meta.

use device::{Backend, Region};
use half::bf16;

use crate::error::{CollectiveError, Result};
use crate::host::{Operand, check_on_host};
use crate::piece::{Piece, Pool};

/// Whether nothing stands behind a region.
pub(crate) fn on_meta(region: &Region<'_>) -> bool {
    region.buffer.backend() == Backend::Meta
}

/// A copy of at most one piece of a region; empty on Meta.
pub(crate) fn read(region: Region<'_>, pool: &mut Pool) -> device::Result<Piece> {
    if on_meta(&region) {
        return Ok(pool.take(0));
    }
    let mut piece = pool.take(region.bytes);
    // Every element type has 16 bits or more, so bytes are moved as pairs.
    let values = region.buffer.read::<bf16>(region.offset, region.bytes / 2)?;
    piece.bytes_mut().copy_from_slice(bytemuck::cast_slice(&values));
    Ok(piece)
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
pub(crate) fn copy(at: Operand, source: Region<'_>, target: Region<'_>) -> Result<()> {
    let same = std::ptr::eq(source.buffer, target.buffer) && source.offset == target.offset;
    if same || on_meta(&source) {
        return Ok(());
    }
    check_on_host(at, &[source, target])?;
    let refused = |source| CollectiveError::device(at.rank, at.call)(source);
    let from = source.buffer.read::<bf16>(source.offset, source.bytes / 2).map_err(refused)?;
    let mut to = target.buffer.write::<bf16>(target.offset, target.bytes / 2).map_err(refused)?;
    to.copy_from_slice(&from);
    Ok(())
}
