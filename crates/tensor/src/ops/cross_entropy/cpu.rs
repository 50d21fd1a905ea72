//! Cross-entropy on the host, one task per block of rows.

use device::parallel::{for_tasks, map, simd};

use crate::ops::math::{exp, map_and_sum, max, sum};
use crate::ops::rows;

/// Target of an ignored row, which has no loss and no gradient.
pub const IGNORED: u32 = u32::MAX;

/// Returns the sum over rows of −ln softmax[target]. Rows of `vocab` scores begin `stride` elements apart.
pub(super) fn losses(logits_tv: &[f32], targets_t: &[u32], [vocab, stride]: [usize; 2]) -> f64 {
    let rows = rows::per_task(vocab);
    let partial = map(targets_t.len().div_ceil(rows), |index| {
        let logits = rows::piece(logits_tv, index, rows * stride);
        let targets = rows::piece(targets_t, index, rows);
        simd(
            #[inline(always)]
            || {
                let mut losses = 0.0;
                let rows = logits.chunks_exact(stride).zip(targets);
                for (row, target) in rows.filter(|(_, target)| **target != IGNORED) {
                    let row = &row[..vocab];
                    let largest = max(row);
                    let total = sum(row, |x| exp(x - largest));
                    losses += loss(row[*target as usize], largest, total);
                }
                losses
            },
        )
    });
    partial.iter().sum()
}

/// Returns [`losses`], and replaces every row of `logits_tv` by weight · (softmax − one-hot).
pub(super) fn losses_and_gradient(
    logits_tv: &mut [f32],
    targets_t: &[u32],
    [vocab, stride]: [usize; 2],
    weight: f32,
) -> f64 {
    let rows = rows::per_task(vocab);
    let mut partial = vec![0.0f64; targets_t.len().div_ceil(rows)];
    let pieces = logits_tv.chunks_mut(rows * stride).zip(targets_t.chunks(rows));
    let tasks = pieces.zip(partial.iter_mut()).collect();
    for_tasks(tasks, |((logits, targets), partial): ((&mut [f32], &[u32]), &mut f64)| {
        simd(
            #[inline(always)]
            || {
                for (row, target) in logits.chunks_exact_mut(stride).zip(targets) {
                    let row = &mut row[..vocab];
                    if *target == IGNORED {
                        row.fill(0.0);
                        continue;
                    }
                    let target = *target as usize;
                    let score = row[target];
                    let largest = max(row);
                    let total = map_and_sum(row, |x| exp(x - largest));
                    *partial += loss(score, largest, total);
                    let factor = weight / total;
                    row.iter_mut().for_each(|x| *x *= factor);
                    row[target] -= weight;
                }
            },
        );
    });
    partial.iter().sum()
}

/// Returns −ln softmax[target] from the target's score, the largest score and Σ e^(score − largest).
#[inline(always)]
fn loss(score: f32, largest: f32, total: f32) -> f64 {
    libm::log(f64::from(total)) + (f64::from(largest) - f64::from(score))
}
