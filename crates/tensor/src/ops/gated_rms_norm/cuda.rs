//! Launches of `kernels/gated_rms_norm.cu`.

use device::{Family, Function};

use super::operands::{GateFunction, Gradients, Operands, Settings, runs};
use crate::ops::columns::cuda::{self as columns, Cut};
use crate::ops::kernels::family;
use crate::ops::{GradientTarget, gpu};
use crate::{Result, Tensor};

pub(crate) static FAMILY: Family =
    family!("gated_rms_norm", headers: ["columns.cuh"], constants: columns::CONSTANTS);

/// Warps of a block.
const WARPS: usize = gpu::THREADS as usize / 32;

pub(super) fn forward(
    operator: &'static str,
    operands: Operands<'_>,
    [heads, width]: [usize; 2],
    settings: Settings,
    y: &Tensor,
) -> Result<()> {
    let Operands { x, z, weight } = operands;
    let word = |size| gpu::word(operator, size);
    let kernel = Function::new(&FAMILY, "forward").with_dtype(x.dtype());
    let launch = x.device().kernel(kernel).read(x).read(z).read(weight).write(y);
    let launch = launch.u32(word(heads)?).u32(word(width)?).f32(settings.epsilon);
    let launch = launch.u32(u32::from(settings.function == GateFunction::Silu));
    let launch = launch.cost(gpu::bytes(&[x, z, y]), 12 * x.elements() as u64);
    Ok(launch.launch([word(heads.div_ceil(WARPS))?, 1, 1], gpu::THREADS)?)
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
    let kernel = Function::new(&FAMILY, "backward").with_dtype(x.dtype());
    let launch = x.device().kernel(kernel).read(dy).read(x).read(z).read(weight);
    let launch = launch.write(&gradients.x).write(&gradients.z).write(&gradients.sums);
    let launch = launch.u32(word(heads)?).u32(word(width)?).u32(word(heads.div_ceil(runs))?);
    let launch = launch.f32(settings.epsilon).u32(u32::from(settings.function == GateFunction::Silu));
    let launch = launch.shared(word(4 * WARPS * width)?);
    let launch = launch.cost(gpu::bytes(&[dy, x, z, x, z]), 24 * x.elements() as u64);
    Ok(launch.launch([word(runs)?, 1, 1], gpu::THREADS)?)
}

pub(super) fn backward_weight(operator: &'static str, sums: &Tensor, weight: &GradientTarget) -> Result<()> {
    let cut = Cut::divide_sums(operator, sums.shape().rows(), sums.shape().columns())?;
    columns::finish(&FAMILY, sums, 0, &cut, cut.width, weight)
}
