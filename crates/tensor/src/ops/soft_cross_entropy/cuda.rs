//! Launches of `kernels/soft_cross_entropy.cu`.

use device::{Family, Function};

use super::targets::{MIXED, SHARES};
use crate::ops::cross_entropy::cuda::{MEAN_THREADS, MOST_THREADS, mean_loss, threads};
use crate::ops::cross_entropy::{IGNORED, Mean};
use crate::ops::gpu;
use crate::ops::kernels::family;
use crate::{Result, Tensor};

pub(crate) static FAMILY: Family = family!(
    "soft_cross_entropy",
    headers: ["scores.cuh"],
    constants: &[
        ("MOST_THREADS", MOST_THREADS),
        ("MEAN_THREADS", MEAN_THREADS),
        ("IGNORED", IGNORED),
        ("MIXED", MIXED as u32),
        ("SHARES", SHARES),
    ],
);

#[derive(Clone, Copy)]
pub(super) struct Call<'a> {
    /// Number of values per target: 1 or [`MIXED`](super::MIXED).
    pub(super) each: usize,
    pub(super) smoothing: f32,
    pub(super) mean: Mean<'a>,
    /// Whether the gradient overwrites the scores.
    pub(super) gradient: bool,
}

/// Computes loss = the mean cross-entropy. With `call.gradient`, the gradient overwrites the scores.
pub(super) fn forward(
    operator: &'static str,
    (scores, classes): (&Tensor, usize),
    targets: &Tensor,
    call: Call<'_>,
    workspace: &Tensor,
    loss: &Tensor,
) -> Result<()> {
    let device = scores.device();
    let dtype = scores.dtype();
    let rows = scores.shape().rows();
    let stride = scores.shape().columns();
    let [rows, each] = [gpu::word(operator, rows)?, gpu::word(operator, call.each)?];
    let counted = match call.mean.count {
        Some(count) => count,
        // The count of rows that are not ignored is stored where the loss will be.
        None => {
            let count = device.kernel(Function::new(&FAMILY, "count_rows")).read(targets);
            let count = count.write(loss).u32(rows).u32(each);
            count.cost(targets.bytes() as u64, u64::from(rows)).launch([1, 1, 1], MEAN_THREADS)?;
            loss
        }
    };

    let kernel = Function::new(&FAMILY, "soft_cross_entropy").with_dtype(dtype);
    let launch = device.kernel(kernel).write(scores).read(targets).read(counted).write(workspace);
    let launch = launch.u32(gpu::word(operator, classes)?).u32(gpu::word(operator, stride)?).u32(each);
    let launch = launch.f32(call.smoothing).f32(call.mean.scale).u32(u32::from(call.gradient));
    let passes = if call.gradient { 4 } else { 3 };
    let launch = launch.cost(passes * scores.bytes() as u64, 8 * scores.elements() as u64);
    launch.launch([rows, 1, 1], threads(operator, classes, dtype)?)?;
    mean_loss(operator, workspace, counted, loss, call.mean.scale)
}
