//! Launches of `kernels/gated_rms_norm.cu`.

use device::{Family, Function};

use super::operands::{GateFunction, Gradients, Operands, Settings, runs};
use crate::ops::columns::cuda::{self as columns, Cut};
use crate::ops::kernels::family;
use crate::ops::{GradientTarget, gpu};
use crate::{Result, Tensor};

pub(crate) static FAMILY: Family = family!(
    "gated_rms_norm",
    headers: ["activation.cuh", "columns.cuh", "held_rows.cuh"],
    constants: columns::CONSTANTS,
);

/// Threads of a warp.
const WARP: usize = 32;
/// Warps of a block.
const WARPS: usize = gpu::THREADS as usize / WARP;

/// Returns the logarithm of the number of threads of a head, each with 16 bytes of it; `None` if a warp is
/// too small for a head, or if heads are not aligned.
fn log_lanes(tensors: &[&Tensor], width: usize) -> Option<u32> {
    let elements = gpu::lanes(tensors.first()?.dtype());
    let vectors = width / elements;
    let is_whole = width.is_multiple_of(elements) && vectors <= WARP && gpu::aligned(tensors);
    is_whole.then(|| vectors.next_power_of_two().trailing_zeros())
}

pub(super) fn forward(
    operator: &'static str,
    operands: Operands<'_>,
    [heads, width]: [usize; 2],
    settings: Settings,
    y: &Tensor,
) -> Result<()> {
    let Operands { x, z, weight } = operands;
    let word = |size| gpu::word(operator, size);
    let log_lanes = log_lanes(&[x, z, weight, y], width);
    let name = if log_lanes.is_some() { "forward" } else { "forward_any" };
    let kernel = Function::new(&FAMILY, name).with_dtype(x.dtype());
    let launch = x.device().kernel(kernel).read(x).read(z).read(weight).write(y);
    let launch = launch.u32(word(heads)?).u32(word(width)?).f32(settings.epsilon);
    let launch = launch.u32(u32::from(settings.function == GateFunction::Silu));
    let launch = launch.cost(gpu::bytes(&[x, z, y]), 12 * x.elements() as u64);
    let (launch, heads_per_block) = match log_lanes {
        Some(log_lanes) => (launch.u32(log_lanes), gpu::THREADS as usize >> log_lanes),
        None => (launch, WARPS),
    };
    Ok(launch.launch([word(heads.div_ceil(heads_per_block))?, 1, 1], gpu::THREADS)?)
}

pub(super) fn backward_input(
    operator: &'static str,
    dy: &Tensor,
    operands: Operands<'_>,
    [heads, width]: [usize; 2],
    settings: Settings,
    gradients: &Gradients,
) -> Result<()> {
    let Operands { x, z, weight } = operands;
    let word = |size| gpu::word(operator, size);
    let runs = runs(heads);
    let log_lanes = log_lanes(&[x, z, weight, dy, &gradients.x, &gradients.z], width);
    let name = if log_lanes.is_some() { "backward" } else { "backward_any" };
    let kernel = Function::new(&FAMILY, name).with_dtype(x.dtype());
    let launch = x.device().kernel(kernel).read(dy).read(x).read(z).read(weight);
    let launch = launch.write(&gradients.x).write(&gradients.z).write(&gradients.sums);
    let launch = launch.u32(word(heads)?).u32(word(width)?).u32(word(heads.div_ceil(runs))?);
    let launch = launch.f32(settings.epsilon).u32(u32::from(settings.function == GateFunction::Silu));
    let launch = match log_lanes {
        Some(log_lanes) => launch.u32(log_lanes),
        None => launch.shared(word(4 * WARPS * width)?),
    };
    let launch = launch.cost(gpu::bytes(&[dy, x, z, x, z]), 24 * x.elements() as u64);
    Ok(launch.launch([word(runs)?, 1, 1], gpu::THREADS)?)
}

pub(super) fn backward_weight(operator: &'static str, sums: &Tensor, weight: &GradientTarget) -> Result<()> {
    let cut = Cut::divide_sums(operator, sums.shape().rows(), sums.shape().columns())?;
    columns::finish(&FAMILY, sums, 0, &cut, cut.width, weight)
}
