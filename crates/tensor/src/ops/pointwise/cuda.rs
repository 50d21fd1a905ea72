//! Launches of `kernels/pointwise.cu`.

use device::{Family, Function};

use super::function::{Pair, Pointwise};
use crate::ops::elementwise::{self, Each};
use crate::ops::gpu;
use crate::ops::kernels::family;
use crate::ops::layout::{Layout, add_layout, add_sizes, sizes};
use crate::{Result, Tensor};

pub(crate) static FAMILY: Family = family!(
    "pointwise",
    headers: ["elementwise.cuh", "layout.cuh"],
    constants: elementwise::CONSTANTS,
);

pub(super) fn forward(x: &Tensor, out: &Tensor, function: Pointwise) -> Result<()> {
    let kernel = Function::new(&FAMILY, function.name()).with_dtype(out.dtype());
    let number = Some(function.number());
    Each { kernel, read: &[x], write: out, updates: false, number }.launch()
}

pub(super) fn backward(dy: &Tensor, x: &Tensor, dx: &Tensor, function: Pointwise) -> Result<()> {
    let kernel = Function::new(&FAMILY, function.slope_name()).with_dtype(dx.dtype());
    let number = Some(function.number());
    Each { kernel, read: &[dy, x], write: dx, updates: false, number }.launch()
}

pub(super) fn pair(
    operator: &'static str,
    (a, of_a): (&Tensor, Layout),
    (b, of_b): (&Tensor, Layout),
    out: &Tensor,
    function: Pair,
) -> Result<()> {
    let count = out.elements();
    if count == 0 {
        return Ok(());
    }
    let kernel = Function::new(&FAMILY, function.name()).with_dtype(out.dtype());
    let launch = out.device().kernel(kernel).read(a).read(b).write(out);
    let launch = add_sizes(operator, launch, &sizes(out.shape()))?;
    let launch = add_layout(add_layout(launch, &of_a), &of_b).u64(count as u64);
    let launch = launch.cost(gpu::bytes(&[a, b, out]), count as u64);
    let blocks = gpu::word(operator, count.div_ceil(gpu::THREADS as usize))?;
    Ok(launch.launch([blocks, 1, 1], gpu::THREADS)?)
}
