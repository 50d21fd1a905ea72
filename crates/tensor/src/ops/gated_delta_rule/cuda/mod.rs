//! Kernels of the gated delta rule on GPUs: in f32, or on tensor cores.

mod plain;
mod tiles;

use std::ops::Range;

use device::cuda::Launch;
use device::{Family, Function};

use super::operands::{CHUNK, DeltaHeads, Geometry, Gradients, Operands};
use super::workspace;
use crate::ops::kernels::family;
use crate::ops::{check, gpu};
use crate::{Result, Tensor};
pub(crate) use plain::FAMILY_BACKWARD;
pub(crate) use tiles::{FAMILY_TILES, FAMILY_TILES_BACKWARD};

/// Constants with which the kernels are compiled.
const CONSTANTS: &[(&str, u32)] = &[gpu::THREADS_CONSTANT, ("CHUNK", CHUNK as u32)];
/// Columns of the widest key. A strip of states must fit into 48 KiB of shared memory.
const WIDEST: usize = 256;

pub(crate) static FAMILY: Family = family!(
    "gated_delta_rule",
    headers: ["gated_delta_chunk.cuh", "gated_delta_rule.cuh"],
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
fn sized<'l>(operator: &'static str, launch: Launch<'l>, geometry: &Geometry) -> Result<Launch<'l>> {
    let DeltaHeads { key, value, width, value_width } = geometry.settings.heads;
    let word = |size| gpu::word(operator, size);
    let launch = launch.u32(word(geometry.time)?).u32(word(key)?).u32(word(value)?).u32(word(width)?);
    let launch = launch.u32(word(value_width)?).u32(word(geometry.settings.channels())?);
    Ok(launch.u32(word(geometry.chunks())?))
}

/// Returns the elements of an array of the workspace.
fn view(workspace: &Tensor, range: Range<usize>) -> Result<Tensor> {
    workspace.view(range.start, [range.len()])
}

pub(super) fn forward(
    operator: &'static str,
    operands: &Operands<'_>,
    geometry: &Geometry,
    workspace: &Tensor,
    results: (&Tensor, Option<&Tensor>),
) -> Result<()> {
    match workspace::tile_width(operands.qkv, geometry) {
        Some(width) => tiles::forward(operator, operands, geometry, (workspace, width), results),
        None => plain::forward(operator, operands, geometry, workspace, results),
    }
}

pub(super) fn backward(
    operator: &'static str,
    upper: (&Tensor, Option<&Tensor>),
    operands: &Operands<'_>,
    geometry: &Geometry,
    workspace: &Tensor,
    gradients: &Gradients,
) -> Result<()> {
    match workspace::tile_width(operands.qkv, geometry) {
        Some(width) => tiles::backward(operator, upper, operands, geometry, (workspace, width), gradients),
        None => plain::backward(operator, upper, operands, geometry, workspace, gradients),
    }
}

/// Advances the states by one token of every slot.
pub(super) fn step(
    operator: &'static str,
    operands: &Operands<'_>,
    geometry: &Geometry,
    states: &Tensor,
    output_blc: &Tensor,
) -> Result<()> {
    check_width(operator, operands.qkv, geometry)?;
    let Operands { qkv, decay, rate, documents, .. } = *operands;
    let DeltaHeads { value, width, .. } = geometry.settings.heads;
    let kernel = Function::new(&FAMILY, "step").with_dtype(qkv.dtype());
    let launch = qkv.device().kernel(kernel).read(qkv).read(decay).read(rate).write(states);
    let launch = sized(operator, launch.read(documents).write(output_blc), geometry)?;
    let word = |size| gpu::word(operator, size);
    let launch = launch.f32(geometry.settings.epsilon).u32(word(states.shape().dims()[0])?);
    let launch = launch.shared(word(12 * width)?).cost(2 * states.bytes() as u64, 0);
    Ok(launch.launch([word(value)?, word(geometry.batch)?, 1], gpu::THREADS)?)
}
