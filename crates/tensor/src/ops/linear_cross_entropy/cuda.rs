//! Launches of `kernels/linear_cross_entropy.cu`.

use device::{Family, Function};

use super::piece::{Settings, VocabularySlice};
use super::statistics::Statistics;
use crate::ops::cross_entropy::IGNORED;
use crate::ops::cross_entropy::cuda::{MOST_THREADS, mean_loss, threads};
use crate::ops::gpu;
use crate::ops::kernels::family;
use crate::{Result, Tensor};

pub(crate) static FAMILY: Family = family!(
    "linear_cross_entropy",
    headers: ["scores.cuh"],
    constants: &[("MOST_THREADS", MOST_THREADS), ("IGNORED", IGNORED)],
);

/// Adds the scores of one vocabulary slice to the rows' statistics. After the last slice, turns the targets'
/// scores into losses.
pub(super) fn join(
    operator: &'static str,
    scores_tv: &Tensor,
    targets_t: &Tensor,
    statistics: &Statistics,
    piece: VocabularySlice,
) -> Result<()> {
    let [maxima_t, sums_t, losses_t] = [statistics.part(0)?, statistics.part(1)?, statistics.part(2)?];
    let kernel = Function::new(&FAMILY, "join").with_dtype(scores_tv.dtype());
    let launch = scores_tv.device().kernel(kernel).read(scores_tv).read(targets_t);
    let launch = launch.write(&maxima_t).write(&sums_t).write(&losses_t);
    let [first, classes] = [gpu::word(operator, piece.first)?, gpu::word(operator, piece.classes)?];
    let launch = launch.u32(first).u32(classes).u32(gpu::word(operator, scores_tv.shape().columns())?);
    let launch = launch.u32(gpu::word(operator, piece.vocabulary)?);
    let launch = launch.u32(u32::from(piece.is_fresh)).u32(u32::from(piece.is_last));
    let launch = launch.f32(piece.soft_cap).cost(scores_tv.bytes() as u64, 2 * scores_tv.elements() as u64);
    let rows = gpu::word(operator, targets_t.elements())?;
    Ok(launch.launch([rows, 1, 1], threads(operator, piece.classes, scores_tv.dtype())?)?)
}

/// Merges statistics of runs of `classes` classes each, `[lanes, 3, rows]`, into statistics of the whole
/// vocabulary.
pub(super) fn merge(
    operator: &'static str,
    parts: &Tensor,
    targets_t: &Tensor,
    merged_3t: &Tensor,
    classes: usize,
) -> Result<()> {
    let lanes = parts.shape().dims()[0];
    let rows = targets_t.elements();
    let launch = parts.device().kernel(Function::new(&FAMILY, "merge")).read(parts);
    let launch = launch.read(targets_t).write(merged_3t).u32(gpu::word(operator, lanes)?);
    let launch = launch.u32(gpu::word(operator, classes)?).u32(gpu::word(operator, rows)?);
    let launch = launch.cost(gpu::bytes(&[parts, targets_t, merged_3t]), 4 * parts.elements() as u64);
    let blocks = gpu::word(operator, rows.div_ceil(MOST_THREADS as usize))?;
    Ok(launch.launch([blocks, 1, 1], MOST_THREADS)?)
}

/// Computes the mean of the rows' losses.
pub(super) fn mean(operator: &'static str, statistics: &Statistics, scale: f32, loss: &Tensor) -> Result<()> {
    mean_loss(operator, &statistics.part(2)?, &statistics.counted, loss, scale)
}

/// Replaces the scores of one vocabulary slice by the gradient of factor · scale · mean loss.
pub(super) fn gradient(
    operator: &'static str,
    scores_tv: &Tensor,
    targets_t: &Tensor,
    statistics: &Statistics,
    piece: VocabularySlice,
    settings: &Settings,
    factor: &Tensor,
) -> Result<()> {
    let maxima_t = statistics.part(0)?;
    let sums_t = statistics.part(1)?;
    let kernel = Function::new(&FAMILY, "gradient").with_dtype(scores_tv.dtype());
    let launch = scores_tv.device().kernel(kernel).write(scores_tv).read(targets_t);
    let launch =
        launch.read(&maxima_t).read(&sums_t).read(&statistics.counted).read(statistics.weights.as_ref());
    let launch = launch.read(factor).u32(gpu::word(operator, piece.first)?);
    let launch = launch.u32(gpu::word(operator, piece.classes)?);
    let launch = launch.u32(gpu::word(operator, scores_tv.shape().columns())?);
    let launch = launch.f32(piece.soft_cap).f32(settings.scale);
    let launch = launch.cost(2 * scores_tv.bytes() as u64, 4 * scores_tv.elements() as u64);
    let rows = gpu::word(operator, targets_t.elements())?;
    Ok(launch.launch([rows, 1, 1], threads(operator, piece.classes, scores_tv.dtype())?)?)
}
