//! Launches of `kernels/cross_entropy.cu`.

use device::Function;
use device::kernels::CROSS_ENTROPY;

use crate::ops::gpu;
use crate::{Result, Tensor};

/// Rows of at most so many bytes wait in shared memory: what every chip from sm_80 on gives a block, less what the kernel
/// has besides. One limit for all, so that a result does not depend on the chip's memory.
const CACHED_BYTES: usize = 101_000;
/// Room for a row's distance from a 16-byte boundary.
const SLACK_BYTES: usize = 16;
/// Vectors of a row for each thread, up to [`MOST_THREADS`].
const VECTORS_PER_THREAD: usize = 4;
const MOST_THREADS: usize = 512;
const MEAN_THREADS: u32 = 1024;

/// loss = scale · mean −ln softmax\[target\]; with `gradient`, the scores become its gradient.
pub(super) fn forward(
    operator: &'static str,
    scores: &Tensor,
    targets: &Tensor,
    gradient: bool,
    scale: f32,
    scratch: &Tensor,
    loss: &Tensor,
) -> Result<()> {
    let (device, dtype) = (scores.device(), scores.dtype());
    let (rows, vocab) = (scores.shape().rows(), scores.shape().columns());
    let row_bytes = vocab * dtype.bytes();
    let cached = row_bytes <= CACHED_BYTES;
    let names = if cached { ["cached_f32", "cached_bf16"] } else { ["streamed_f32", "streamed_bf16"] };
    let shared = if cached { row_bytes + SLACK_BYTES } else { 0 };
    let wanted = (vocab / gpu::lanes(dtype)).div_ceil(VECTORS_PER_THREAD).next_multiple_of(32);
    let threads = gpu::word(operator, wanted.clamp(32, MOST_THREADS))?;
    let launch = device.kernel(gpu::kernel(&CROSS_ENTROPY, names, dtype)).write(scores.region());
    let launch = launch.read(targets.region()).write(scratch.region()).u32(gpu::word(operator, vocab)?);
    let launch = launch.f32(scale / rows as f32).u32(u32::from(gradient));
    let launch = launch.shared(gpu::word(operator, shared)?);
    let passes = if gradient { 2 } else { 1 };
    let launch = launch.cost(passes * scores.bytes() as u64, 4 * scores.elements() as u64);
    let rows = gpu::word(operator, rows)?;
    launch.launch([rows, 1, 1], threads)?;
    let mean = device.kernel(Function::new(&CROSS_ENTROPY, "mean_loss")).read(scratch.region());
    let mean = mean.write(loss.region()).u32(rows).f32(scale).cost(scratch.bytes() as u64, u64::from(rows));
    Ok(mean.launch([1, 1, 1], MEAN_THREADS)?)
}
