//! Launches of `kernels/cross_entropy.cu`.

use device::{DType, Family, Function};

use super::cpu::IGNORED;
use super::mean::Mean;
use crate::ops::gpu;
use crate::ops::kernels::family;
use crate::{Result, Tensor};

/// Bytes of the longest row that is kept in shared memory: a block's limit on every GPU from sm_80 on, minus
/// the kernel's other use. One limit for all, so that results do not depend on the GPU.
const CACHED_BYTES: usize = 101_000;
/// [`CACHED_BYTES`] of GPUs before sm_80, whose blocks have 64 KiB.
const CACHED_BYTES_BEFORE_SM_80: usize = 64_000;
/// Bytes reserved for a row's offset from a 16-byte boundary.
const SLACK_BYTES: usize = 16;
/// Vectors of a row per thread, up to [`MOST_THREADS`].
const VECTORS_PER_THREAD: usize = 4;
pub(in crate::ops) const MOST_THREADS: u32 = 512;
pub(in crate::ops) const MEAN_THREADS: u32 = 1024;

pub(crate) static FAMILY: Family = family!(
    "cross_entropy",
    headers: ["scores.cuh"],
    constants: &[
        ("MOST_THREADS", MOST_THREADS),
        ("MEAN_THREADS", MEAN_THREADS),
        ("IGNORED", IGNORED),
    ],
);

/// Settings of the gradient that replaces the scores.
pub(super) struct Slope<'a> {
    /// A factor of the gradient, on the device.
    pub(super) loss_scale: Option<&'a Tensor>,
}

/// Computes loss = mean of −ln softmax\[target\]. With `gradient`, the gradient overwrites the scores.
pub(super) fn forward(
    operator: &'static str,
    (scores_tv, vocab): (&Tensor, usize),
    targets_t: &Tensor,
    gradient: Option<Slope<'_>>,
    mean: Mean<'_>,
    workspace: &Tensor,
    loss: &Tensor,
) -> Result<()> {
    let device = scores_tv.device();
    let dtype = scores_tv.dtype();
    let rows = scores_tv.shape().rows();
    let stride = scores_tv.shape().columns();
    let row_bytes = vocab * dtype.bytes();
    let is_old = device.description().compute_capability < (8, 0);
    let cached = row_bytes <= if is_old { CACHED_BYTES_BEFORE_SM_80 } else { CACHED_BYTES };
    let kernel = Function::new(&FAMILY, if cached { "cached" } else { "streamed" }).with_dtype(dtype);
    let shared = if cached { row_bytes + SLACK_BYTES } else { 0 };
    let threads = threads(operator, vocab, dtype)?;
    let rows = gpu::word(operator, rows)?;
    let counted = match mean.count {
        Some(count) => count,
        // The count of targets that are not ignored is stored where the loss will be.
        None => {
            count_targets(operator, targets_t, loss)?;
            loss
        }
    };
    let launch = device.kernel(kernel).write(scores_tv).read(targets_t);
    let launch = launch.read(counted).write(workspace);
    let launch = launch.u32(gpu::word(operator, vocab)?).u32(gpu::word(operator, stride)?);
    let launch = launch.f32(mean.scale).u32(u32::from(gradient.is_some()));
    let launch = launch.read(gradient.as_ref().and_then(|gradient| gradient.loss_scale));
    let launch = launch.shared(gpu::word(operator, shared)?);
    let passes = if gradient.is_some() { 2 } else { 1 };
    let launch = launch.cost(passes * scores_tv.bytes() as u64, 4 * scores_tv.elements() as u64);
    launch.launch([rows, 1, 1], threads)?;
    mean_loss(operator, workspace, counted, loss, mean.scale)
}

/// Returns the threads of a block that computes a row of `columns` scores.
pub(in crate::ops) fn threads(operator: &'static str, columns: usize, dtype: DType) -> Result<u32> {
    let wanted = (columns / gpu::lanes(dtype)).div_ceil(VECTORS_PER_THREAD).next_multiple_of(32);
    gpu::word(operator, wanted.clamp(32, MOST_THREADS as usize))
}

/// Writes the number of targets that are not ignored, in 32 bits, to `count`.
pub(in crate::ops) fn count_targets(
    operator: &'static str,
    targets_t: &Tensor,
    count: &Tensor,
) -> Result<()> {
    let rows = gpu::word(operator, targets_t.elements())?;
    let launch = targets_t.device().kernel(Function::new(&FAMILY, "count_targets")).read(targets_t);
    let launch = launch.write(count).u32(rows).cost(targets_t.bytes() as u64, u64::from(rows));
    Ok(launch.launch([1, 1, 1], MEAN_THREADS)?)
}

/// Computes loss = scale · the sum of the rows' losses / `counted`. `loss` may be the memory of `counted`.
pub(in crate::ops) fn mean_loss(
    operator: &'static str,
    losses_t: &Tensor,
    counted: &Tensor,
    loss: &Tensor,
    scale: f32,
) -> Result<()> {
    let rows = gpu::word(operator, losses_t.elements())?;
    let mean = losses_t.device().kernel(Function::new(&FAMILY, "mean_loss")).read(losses_t);
    let mean =
        mean.read(counted).write(loss).u32(rows).f32(scale).cost(losses_t.bytes() as u64, u64::from(rows));
    Ok(mean.launch([1, 1, 1], MEAN_THREADS)?)
}
