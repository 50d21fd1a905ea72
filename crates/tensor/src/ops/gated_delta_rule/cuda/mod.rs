//! Kernels of the gated delta rule on GPUs: in f32, or on tensor cores.

mod launch;
mod plain;
mod tiles;

use device::Function;

use super::operands::{DeltaHeads, Geometry, Gradients, Operands};
use super::workspace;
use crate::ops::gpu;
use crate::{Result, Tensor};
pub(crate) use launch::FAMILY;
use launch::{check_width, sized};
pub(crate) use plain::FAMILY_BACKWARD;
pub(crate) use tiles::{FAMILY_TILES, FAMILY_TILES_BACKWARD};

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
