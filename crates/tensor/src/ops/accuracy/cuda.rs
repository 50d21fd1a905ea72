//! Launches of `kernels/accuracy.cu`.

use device::{Family, Function};

use super::counts::{COUNTS, MOST};
use crate::ops::cross_entropy::IGNORED;
use crate::ops::gpu;
use crate::ops::kernels::family;
use crate::{Result, Tensor};

/// Threads of a block. Each warp computes one row.
const THREADS: u32 = 1024;

pub(crate) static FAMILY: Family = family!(
    "accuracy",
    constants: &[("THREADS", THREADS), ("IGNORED", IGNORED), ("MOST", MOST), ("COUNTS", COUNTS as u32)],
);

/// Writes the counts of [`super::count`].
pub(super) fn count(
    operator: &'static str,
    scores: &Tensor,
    targets: &Tensor,
    each: usize,
    counts: &Tensor,
) -> Result<()> {
    let [rows, classes, each] =
        [scores.shape().rows(), scores.shape().columns(), each].map(|value| gpu::word(operator, value));
    let kernel = Function::new(&FAMILY, "count").with_dtype(scores.dtype());
    let launch = scores.device().kernel(kernel).read(scores).read(targets);
    let launch = launch.write(counts).u32(rows?).u32(classes?).u32(each?);
    let launch = launch.cost(scores.bytes() as u64, 2 * scores.elements() as u64);
    Ok(launch.launch([1, 1, 1], THREADS)?)
}
