//! Launches of `kernels/blocks.cu`.

use device::cuda::Launch;
use device::{Family, Function};

use super::block::Block;
use crate::ops::kernels::family;
use crate::ops::{GradientTarget, gpu};
use crate::{Result, Tensor};

pub(crate) static FAMILY: Family = family!("blocks", constants: &[gpu::THREADS_CONSTANT]);

/// Writes the columns of one block of the matrix.
pub(super) fn spread(
    operator: &'static str,
    packed: &Tensor,
    matrix: &Tensor,
    block: Block<'_>,
    scale: f32,
) -> Result<()> {
    let rows = matrix.shape().rows();
    let count = matrix.shape().rows() * block.width;
    let kernel = Function::new(&FAMILY, "spread").with_dtype(matrix.dtype());
    let launch = matrix.device().kernel(kernel).read(packed).write(matrix).u32(gpu::word(operator, rows)?);
    let launch = add_block(operator, launch, matrix, block)?.f32(scale);
    let bytes = (count + block.range.len() * block.width) * matrix.dtype().bytes();
    Ok(launch.cost(bytes as u64, count as u64).launch(grid(operator, count)?, gpu::THREADS)?)
}

/// Reads one block of the matrix into its packed rows.
pub(super) fn gather(
    operator: &'static str,
    matrix: &Tensor,
    packed: &GradientTarget,
    block: Block<'_>,
    scale: f32,
) -> Result<()> {
    let count = block.range.len() * block.width;
    let kernel = Function::new(&FAMILY, "gather").with_dtype(matrix.dtype());
    let launch = matrix.device().kernel(kernel).read(matrix).write(&packed.tensor);
    let launch = add_block(operator, launch, matrix, block)?.f32(scale).u32(u32::from(packed.accumulate));
    let passes = if packed.accumulate { 3 } else { 2 };
    let bytes = passes * count * matrix.dtype().bytes();
    Ok(launch.cost(bytes as u64, count as u64).launch(grid(operator, count)?, gpu::THREADS)?)
}

fn add_block<'a>(
    operator: &'static str,
    launch: Launch<'a>,
    matrix: &Tensor,
    Block { index, range, before, width }: Block<'_>,
) -> Result<Launch<'a>> {
    let numbers = [matrix.shape().columns(), width, index, range.start, range.len(), before];
    numbers.into_iter().try_fold(launch, |launch, number| Ok(launch.u32(gpu::word(operator, number)?)))
}

fn grid(operator: &'static str, count: usize) -> Result<[u32; 3]> {
    Ok([gpu::word(operator, count.div_ceil(gpu::THREADS as usize))?, 1, 1])
}
