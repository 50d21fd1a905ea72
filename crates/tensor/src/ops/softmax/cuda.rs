//! Launches of `kernels/softmax.cu`.

use device::{Family, Function};

use crate::ops::gpu;
use crate::ops::kernels::family;
use crate::{Result, Tensor};

/// Threads of a warp. Each warp computes one row.
const WARP: usize = 32;

pub(crate) static FAMILY: Family = family!("softmax", constants: &[gpu::THREADS_CONSTANT]);

pub(super) fn forward(operator: &'static str, x: &Tensor, y: &Tensor) -> Result<()> {
    launch(operator, "softmax", &[x], y)
}

pub(super) fn backward(operator: &'static str, dy: &Tensor, y: &Tensor, dx: &Tensor) -> Result<()> {
    launch(operator, "softmax_back", &[dy, y], dx)
}

fn launch(operator: &'static str, name: &'static str, read: &[&Tensor], write: &Tensor) -> Result<()> {
    let rows = write.shape().rows();
    let columns = write.shape().columns();
    let launch = write.device().kernel(Function::new(&FAMILY, name).with_dtype(write.dtype()));
    let launch = read.iter().fold(launch, |launch, operand| launch.read(*operand));
    let launch = launch.write(write).u64(rows as u64).u64(columns as u64);
    let launch = launch.cost(gpu::bytes(read) + write.bytes() as u64, 4 * write.elements() as u64);
    let blocks = gpu::word(operator, (rows * WARP).div_ceil(gpu::THREADS as usize))?;
    Ok(launch.launch([blocks, 1, 1], gpu::THREADS)?)
}
