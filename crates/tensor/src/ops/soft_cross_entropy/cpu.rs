//! Cross-entropy against distributions on the host, one task per block of rows.

use device::Float;
use device::parallel::{for_tasks, map, simd};

use super::targets::{Target, Targets};
use crate::ops::cross_entropy::IGNORED;
use crate::ops::math::{exp, max, sum};
use crate::ops::rows;

/// Returns the sum of the rows' cross-entropies. Rows of `classes` scores begin `stride` elements apart.
pub(super) fn losses<T: Float>(
    logits: &[T],
    targets: &Targets,
    [classes, stride]: [usize; 2],
    smoothing: f32,
) -> f64 {
    let rows = rows::per_task(classes);
    let partial = map(targets.rows.len().div_ceil(rows), |index| {
        let logits = rows::piece(logits, index, rows * stride);
        let targets = rows::piece(&targets.rows, index, rows);
        let mut row = vec![0.0; classes];
        let all = logits.chunks_exact(stride).zip(targets);
        let each = |(logits, target): (&[T], &Target)| {
            row.iter_mut().zip(logits).for_each(|(x, logit)| *x = logit.to_f32());
            simd(
                #[inline(always)]
                || loss(&row, *target, smoothing).0,
            )
        };
        all.filter(|(_, target)| target.class != IGNORED).map(each).sum::<f64>()
    });
    partial.iter().sum()
}

/// Returns [`losses`], and replaces every row by weight · (softmax − distribution).
pub(super) fn losses_and_gradient<T: Float>(
    logits: &mut [T],
    targets: &Targets,
    [classes, stride]: [usize; 2],
    smoothing: f32,
    weight: f32,
) -> f64 {
    let rows = rows::per_task(classes);
    let mut partial = vec![0.0f64; targets.rows.len().div_ceil(rows)];
    let pieces = logits.chunks_mut(rows * stride).zip(targets.rows.chunks(rows));
    let tasks = pieces.zip(partial.iter_mut()).collect();
    for_tasks(tasks, |((logits, targets), partial): ((&mut [T], &[Target]), &mut f64)| {
        let mut row = vec![0.0; classes];
        for (logits, target) in logits.chunks_exact_mut(stride).zip(targets) {
            let logits = &mut logits[..classes];
            if target.class == IGNORED {
                logits.fill(T::from_f32(0.0));
                continue;
            }
            row.iter_mut().zip(&*logits).for_each(|(x, logit)| *x = logit.to_f32());
            simd(
                #[inline(always)]
                || {
                    let (loss, largest, total) = loss(&row, *target, smoothing);
                    *partial += loss;
                    let factor = weight / total;
                    let rest = weight * smoothing / classes as f32;
                    row.iter_mut().for_each(|x| *x = exp(*x - largest) * factor - rest);
                },
            );
            let target_weight = weight * (1.0 - smoothing);
            row[target.class as usize] -= target_weight * target.share;
            row[target.other as usize] -= target_weight * (1.0 - target.share);
            T::round(&row, logits);
        }
    });
    partial.iter().sum()
}

/// Returns a row's cross-entropy, its largest score, and Σ e^(score − largest).
#[inline(always)]
fn loss(row: &[f32], target: Target, smoothing: f32) -> (f64, f32, f32) {
    let largest = max(row);
    let total = sum(row, |x| exp(x - largest));
    // Scores below the largest, so that sums stay small.
    let below = |score: f32| f64::from(largest) - f64::from(score);
    let share = f64::from(target.share);
    let [own, other] = [target.class, target.other].map(|class| below(row[class as usize]));
    let mean = f64::from(sum(row, |x| largest - x)) / row.len() as f64;
    let smoothing = f64::from(smoothing);
    let expected = (1.0 - smoothing) * (share * own + (1.0 - share) * other) + smoothing * mean;
    (libm::log(f64::from(total)) + expected, largest, total)
}
