//! Launches of `kernels/delta_gates.cu`.

use device::cuda::Launch;
use device::{Family, Function};

use super::operands::{Gates, Operands, Sizes};
use crate::ops::kernels::family;
use crate::ops::{GradientTarget, gpu};
use crate::{Result, Tensor};

pub(crate) static FAMILY: Family = family!("delta_gates", constants: &[gpu::THREADS_CONSTANT]);

/// Columns of a block that sums over rows.
const TILE: usize = 32;

fn sized<'l>(operator: &'static str, launch: Launch<'l>, sizes: Sizes) -> Result<Launch<'l>> {
    let word = |size| gpu::word(operator, size);
    Ok(launch.u32(word(sizes.rows)?).u32(word(sizes.decays)?).u32(word(sizes.heads)?))
}

fn elementwise(operator: &'static str, launch: Launch<'_>, sizes: Sizes) -> Result<()> {
    let items = sizes.rows * (sizes.decays + sizes.heads);
    let blocks = gpu::word(operator, items.div_ceil(gpu::THREADS as usize))?;
    Ok(launch.cost(16 * items as u64, 8 * items as u64).launch([blocks, 1, 1], gpu::THREADS)?)
}

pub(super) fn forward(
    operator: &'static str,
    operands: Operands<'_>,
    sizes: Sizes,
    factor: f32,
    gates: &Gates<Tensor>,
) -> Result<()> {
    let Operands { a, b, log_speed, bias } = operands;
    let kernel = Function::new(&FAMILY, "forward").with_dtype(a.dtype());
    let launch = a.device().kernel(kernel).read(a).read(b).read(log_speed).read(bias);
    let launch = launch.write(&gates.decay).write(&gates.rate);
    elementwise(operator, sized(operator, launch, sizes)?.f32(factor), sizes)
}

pub(super) fn backward_input(
    operator: &'static str,
    gradients: &Gates<&Tensor>,
    operands: Operands<'_>,
    sizes: Sizes,
    factor: f32,
    inputs: &Gates<Tensor>,
) -> Result<()> {
    let Operands { a, b, log_speed, bias } = operands;
    let kernel = Function::new(&FAMILY, "backward").with_dtype(a.dtype());
    let launch = a.device().kernel(kernel).read(gradients.decay).read(gradients.rate);
    let launch = launch.read(a).read(b).read(log_speed).read(bias);
    let launch = launch.write(&inputs.decay).write(&inputs.rate);
    elementwise(operator, sized(operator, launch, sizes)?.f32(factor), sizes)
}

pub(super) fn backward_weight(
    operator: &'static str,
    ddecay: &Tensor,
    operands: Operands<'_>,
    sizes: Sizes,
    [log_speed, bias]: [&GradientTarget; 2],
) -> Result<()> {
    let Operands { a, log_speed: speeds, bias: biases, .. } = operands;
    let is_single = log_speed.tensor.dtype() != a.dtype();
    let sums = |name: &'static str, target: &GradientTarget, blocks: usize| {
        let kernel = Function::new(&FAMILY, name).with_dtype(a.dtype());
        let launch = a.device().kernel(kernel).read(ddecay).read(a).read(speeds).read(biases);
        let launch = launch.write(&target.tensor);
        let launch = sized(operator, launch, sizes)?.u32(u32::from(target.accumulate));
        let launch = launch.u32(u32::from(is_single)).cost(gpu::bytes(&[ddecay, a]), 0);
        Ok::<_, crate::TensorError>(launch.launch([gpu::word(operator, blocks)?, 1, 1], gpu::THREADS)?)
    };
    // The order of sums depends on whether a head has channels, and not on the number of heads.
    match sizes.decays == sizes.heads {
        true => sums("head_bias_sums", bias, sizes.heads)?,
        false => sums("bias_sums", bias, sizes.decays.div_ceil(TILE))?,
    }
    sums("speed_sums", log_speed, sizes.heads)
}
