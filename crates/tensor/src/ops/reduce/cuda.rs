//! Launches of `kernels/reduce.cu`.

use device::{Family, Function};

use super::cut::{Cut, Reduction};
use crate::ops::gpu;
use crate::ops::kernels::family;
use crate::{Result, Tensor};

/// Threads of a warp. If the terms are adjacent, a warp computes one result.
const WARP: usize = 32;

pub(crate) static FAMILY: Family = family!("reduce", constants: &[gpu::THREADS_CONSTANT]);

pub(super) fn forward(
    operator: &'static str,
    x: &Tensor,
    out: &Tensor,
    cut: Cut,
    reduction: Reduction,
) -> Result<()> {
    let name = match reduction {
        Reduction::Sum => "sum",
        Reduction::Maximum => "maximum",
    };
    let kernel = Function::new(&FAMILY, name).with_dtype(out.dtype());
    let launch = out.device().kernel(kernel).read(x).write(out);
    let launch = launch.u64(cut.results as u64).u64(cut.count as u64).u64(cut.inner as u64);
    let threads = if cut.inner == 1 { cut.results * WARP } else { cut.results };
    let launch = launch.cost(gpu::bytes(&[x, out]), x.elements() as u64);
    let blocks = threads.div_ceil(gpu::THREADS as usize);
    if blocks == 0 {
        return Ok(());
    }
    Ok(launch.launch([gpu::word(operator, blocks)?, 1, 1], gpu::THREADS)?)
}

pub(super) fn backward_maximum(
    operator: &'static str,
    [dy, x, y]: [&Tensor; 3],
    dx: &Tensor,
    cut: Cut,
) -> Result<()> {
    let blocks = cut.results.div_ceil(gpu::THREADS as usize);
    if blocks == 0 {
        return Ok(());
    }
    let kernel = Function::new(&FAMILY, "to_largest").with_dtype(dx.dtype());
    let launch = dx.device().kernel(kernel).read(dy).read(x).read(y);
    let launch = launch.write(dx).u64(cut.results as u64).u64(cut.count as u64);
    let launch = launch.u64(cut.inner as u64).cost(gpu::bytes(&[dy, x, y, dx]), x.elements() as u64);
    Ok(launch.launch([gpu::word(operator, blocks)?, 1, 1], gpu::THREADS)?)
}
