//! Launches of `kernels/sigmoid_gate.cu`.

use device::cuda::Launch;
use device::{Family, Function};

use crate::ops::gpu;
use crate::ops::kernels::family;
use crate::{Result, Tensor};

pub(crate) static FAMILY: Family = family!("sigmoid_gate", constants: &[gpu::THREADS_CONSTANT]);

/// Warps of a block.
const WARPS: usize = gpu::THREADS as usize / 32;

/// Launches a warp for each row.
fn by_row(operator: &'static str, launch: Launch<'_>, x: &Tensor, z: &Tensor) -> Result<()> {
    let word = |size| gpu::word(operator, size);
    let rows = x.shape().rows();
    let launch = launch.u32(word(rows)?).u32(word(x.shape().columns())?);
    let launch = launch.u32(u32::from(z.shape().columns() == 1));
    let launch = launch.cost(3 * x.bytes() as u64, 8 * x.elements() as u64);
    Ok(launch.launch([word(rows.div_ceil(WARPS))?, 1, 1], gpu::THREADS)?)
}

pub(super) fn forward(operator: &'static str, x: &Tensor, z: &Tensor, y: &Tensor) -> Result<()> {
    let kernel = Function::new(&FAMILY, "forward").with_dtype(x.dtype());
    by_row(operator, x.device().kernel(kernel).read(x).read(z).write(y), x, z)
}

pub(super) fn backward(
    operator: &'static str,
    dy: &Tensor,
    x: &Tensor,
    z: &Tensor,
    [dx, dz]: &[Tensor; 2],
) -> Result<()> {
    let kernel = Function::new(&FAMILY, "backward").with_dtype(x.dtype());
    by_row(operator, x.device().kernel(kernel).read(dy).read(x).read(z).write(dx).write(dz), x, z)
}
