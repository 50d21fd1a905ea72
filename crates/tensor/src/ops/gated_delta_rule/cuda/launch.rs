//! The family, constants and sizes that launches of the gated delta rule share.

use std::ops::Range;

use device::Family;
use device::cuda::Launch;

use crate::ops::gated_delta_rule::operands::{CHUNK, DeltaHeads, Geometry};
use crate::ops::kernels::family;
use crate::ops::{check, gpu};
use crate::{Result, Tensor};

/// Constants with which the kernels are compiled.
pub(super) const CONSTANTS: &[(&str, u32)] = &[gpu::THREADS_CONSTANT, ("CHUNK", CHUNK as u32)];
/// Columns of the widest key. A strip of states must fit into 48 KiB of shared memory.
const WIDEST: usize = 256;

pub(crate) static FAMILY: Family = family!(
    "gated_delta_rule",
    headers: ["gated_delta_rule.cuh", "recurrent_chunk.cuh", "slabs.cuh"],
    constants: CONSTANTS
);

/// Refuses keys that are wider than a strip of states allows.
pub(super) fn check_width(operator: &'static str, qkv: &Tensor, geometry: &Geometry) -> Result<()> {
    if geometry.settings.heads.width <= WIDEST {
        return Ok(());
    }
    Err(check::wrong(operator, "qkv", qkv, format!("keys of at most {WIDEST} columns")))
}

/// Adds the sizes to a launch.
pub(super) fn sized<'l>(
    operator: &'static str,
    launch: Launch<'l>,
    geometry: &Geometry,
) -> Result<Launch<'l>> {
    let DeltaHeads { key, value, width, value_width } = geometry.settings.heads;
    let word = |size| gpu::word(operator, size);
    let launch = launch.u32(word(geometry.time)?).u32(word(key)?).u32(word(value)?).u32(word(width)?);
    let launch = launch.u32(word(value_width)?).u32(word(geometry.settings.channels())?);
    Ok(launch.u32(word(geometry.chunks())?))
}

/// Returns the elements of an array of the workspace.
pub(super) fn view(workspace: &Tensor, range: Range<usize>) -> Result<Tensor> {
    workspace.view(range.start, [range.len()])
}
