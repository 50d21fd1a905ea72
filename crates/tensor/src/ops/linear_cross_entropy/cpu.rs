//! Scores of a slice of the vocabulary on the host, one task per block of rows.

use device::parallel::{for_tasks, simd};

use super::piece::{Settings, VocabularySlice};
use super::statistics::Statistics;
use crate::ops::cross_entropy::{IGNORED, Mean};
use crate::ops::math::{exp, max, sum};
use crate::ops::pointwise::{soft_cap, soft_cap_slope};
use crate::ops::{check, rows};
use crate::{Result, Tensor};

/// Checks the targets that are not ignored.
///
/// # Errors
/// A target outside the vocabulary.
pub(super) fn check_targets(operator: &'static str, targets_t: &Tensor, vocabulary: usize) -> Result<()> {
    let indices: Vec<u32> = targets_t.read::<u32>()?.iter().copied().filter(|t| *t != IGNORED).collect();
    check::indices(operator, &indices, vocabulary)
}

/// Counts the targets that are not ignored.
pub(super) fn count(targets_t: &Tensor, counted: &Tensor) -> Result<()> {
    let count = targets_t.read::<u32>()?.iter().filter(|target| **target != IGNORED).count();
    counted.set(&[count as u32])
}

fn capped(x: f32, cap: f32) -> f32 {
    if cap > 0.0 { soft_cap(x, cap) } else { x }
}

/// Adds the scores of one vocabulary slice to the rows' statistics. After the last slice, turns the targets'
/// scores into losses.
pub(super) fn join(
    scores_tv: &Tensor,
    targets_t: &Tensor,
    statistics: &Statistics,
    piece: VocabularySlice,
) -> Result<()> {
    let VocabularySlice { first, classes, soft_cap: cap, .. } = piece;
    let stride = scores_tv.shape().columns();
    let scores_tv = scores_tv.values()?;
    let targets_t = targets_t.read::<u32>()?;
    let mut state = statistics.rows.values_mut()?;
    let all = targets_t.len();
    let (maxima, rest) = state.split_at_mut(all);
    let (sums, losses) = rest.split_at_mut(all);
    let most = rows::per_task(classes);
    let pieces = scores_tv.chunks(most * stride).zip(targets_t.chunks(most));
    let state = maxima.chunks_mut(most).zip(sums.chunks_mut(most)).zip(losses.chunks_mut(most));
    for_tasks(pieces.zip(state).collect(), |((scores, targets), ((maxima, sums), losses))| {
        simd(
            #[inline(always)]
            || {
                let state = maxima.iter_mut().zip(sums.iter_mut()).zip(losses.iter_mut());
                for ((scores, target), ((largest, total), loss)) in
                    scores.chunks_exact(stride).zip(targets).zip(state)
                {
                    if *target == IGNORED {
                        *loss = 0.0;
                        continue;
                    }
                    let scores = &scores[..classes];
                    let own = capped(max(scores), cap);
                    let of_piece = sum(
                        scores,
                        #[inline(always)]
                        |x| exp(capped(x, cap) - own),
                    );
                    if piece.is_fresh {
                        (*largest, *total, *loss) = (own, of_piece, 0.0);
                    } else {
                        let both = largest.max(own);
                        *total = *total * exp(*largest - both) + of_piece * exp(own - both);
                        *largest = both;
                    }
                    if let Some(score) = (*target as usize).checked_sub(first).and_then(|at| scores.get(at)) {
                        *loss = capped(*score, cap);
                    }
                    if piece.is_last {
                        let total = libm::log(f64::from(*total));
                        *loss = (total + (f64::from(*largest) - f64::from(*loss))) as f32;
                    }
                }
            },
        );
    });
    Ok(())
}

/// Merges statistics of runs of `classes` classes each, `[lanes, 3, rows]`, into statistics of the whole
/// vocabulary.
pub(super) fn merge(parts: &Tensor, targets_t: &Tensor, merged_3t: &Tensor, classes: usize) -> Result<()> {
    let targets_t = targets_t.read::<u32>()?;
    let parts = parts.values()?;
    let mut merged_3t = merged_3t.values_mut()?;
    let rows = targets_t.len();
    for (row, target) in targets_t.iter().enumerate() {
        if *target == IGNORED {
            merged_3t[2 * rows + row] = 0.0;
            continue;
        }
        let lanes = || parts.chunks_exact(3 * rows).map(|lane| (lane[row], lane[rows + row]));
        let largest = lanes().map(|(largest, _)| largest).fold(f32::NEG_INFINITY, f32::max);
        let total: f32 = lanes().map(|(own, total)| total * exp(own - largest)).sum();
        let score = parts[*target as usize / classes * 3 * rows + 2 * rows + row];
        let loss = libm::log(f64::from(total)) + (f64::from(largest) - f64::from(score));
        (merged_3t[row], merged_3t[rows + row], merged_3t[2 * rows + row]) = (largest, total, loss as f32);
    }
    Ok(())
}

/// Computes loss = the mean of the rows' losses; 0 if the divisor is 0.
pub(super) fn mean(statistics: &Statistics, mean: Mean<'_>, loss: &Tensor) -> Result<()> {
    let counted = statistics.counted.read::<u32>()?[0];
    let total: f64 = statistics.part(2)?.values()?.iter().map(|loss| f64::from(*loss)).sum();
    loss.set(&[mean.of_total(total, counted)])
}

/// Replaces the scores of one vocabulary slice by the gradient of factor · scale · mean loss.
pub(super) fn gradient(
    scores_tv: &Tensor,
    targets_t: &Tensor,
    statistics: &Statistics,
    piece: VocabularySlice,
    settings: &Settings,
    factor: &Tensor,
) -> Result<()> {
    let VocabularySlice { first, classes, soft_cap: cap, .. } = piece;
    let factor = factor.reshape([1])?.values()?[0];
    let of_mean = match &statistics.weights {
        Some(_) => 0.0,
        None => settings.scale / statistics.counted.read::<u32>()?[0] as f32 * factor,
    };
    let weights_t = statistics.weights.as_ref().map(Tensor::values).transpose()?;
    let weights_t: Option<&[f32]> = weights_t.as_deref();
    let maxima_t = statistics.part(0)?;
    let sums_t = statistics.part(1)?;
    let targets_t = targets_t.read::<u32>()?;
    let maxima_t = maxima_t.values()?;
    let sums_t = sums_t.values()?;
    let (targets_t, maxima_t, sums_t): (&[u32], &[f32], &[f32]) = (&targets_t, &maxima_t, &sums_t);
    let most = rows::per_task(classes);
    let stride = scores_tv.shape().columns();
    let mut scores_tv = scores_tv.values_mut()?;
    for_tasks(scores_tv.chunks_mut(most * stride).enumerate().collect(), |(task, scores)| {
        simd(
            #[inline(always)]
            || {
                for (row, scores) in scores.chunks_exact_mut(stride).enumerate() {
                    let scores = &mut scores[..classes];
                    let row = task * most + row;
                    if targets_t[row] == IGNORED {
                        scores.fill(0.0);
                        continue;
                    }
                    let weight = weights_t.map_or(of_mean, |weights| weights[row] * factor);
                    let largest = maxima_t[row];
                    let share = weight / sums_t[row];
                    let hot = (targets_t[row] as usize).checked_sub(first);
                    for (at, x) in scores.iter_mut().enumerate() {
                        let score = capped(*x, cap);
                        let mut slope = exp(score - largest) * share;
                        if hot == Some(at) {
                            slope -= weight;
                        }
                        *x = if cap > 0.0 { slope * soft_cap_slope(score, cap) } else { slope };
                    }
                }
            },
        );
    });
    Ok(())
}
