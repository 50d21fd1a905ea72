//! Launches of `kernels/folded_convolution.cu`.

use device::{Family, Function};

use super::norm::Norm;
use crate::ops::gpu;
use crate::ops::kernels::family;
use crate::{Result, Tensor};

/// Elements per thread if a window has a multiple of them. They belong to one channel.
const WIDE: usize = 8;

pub(crate) static FAMILY: Family =
    family!("folded_convolution", constants: &[gpu::THREADS_CONSTANT, ("WIDE", WIDE as u32)]);

/// Computes the folded weight and bias, as `cpu::fold` does.
pub(super) fn fold(
    operator: &'static str,
    weight: &Tensor,
    norm: Norm<'_>,
    folded: &Tensor,
    bias: &Tensor,
) -> Result<()> {
    let count = gpu::word(operator, weight.elements())?;
    let channels = gpu::word(operator, bias.elements())?;
    let window = count / channels.max(1);
    let vector = window.is_multiple_of(WIDE as u32) && gpu::aligned(&[weight, folded]);
    let kernel = Function::new(&FAMILY, "fold").from_to(weight.dtype(), folded.dtype());
    let launch = weight.device().kernel(kernel).read(weight).read(norm.weight).read(norm.bias);
    let launch = launch.read(norm.mean).read(norm.variance).write(folded).write(bias);
    let launch = launch.u32(window).u32(count).u32(u32::from(vector)).f32(norm.epsilon);
    let blocks = [count.div_ceil(WIDE as u32 * gpu::THREADS), 1, 1];
    let moved = gpu::bytes(&[weight, folded, bias]);
    Ok(launch.cost(moved, u64::from(count)).launch(blocks, gpu::THREADS)?)
}
