//! Top-1 and top-5 counts on the host.

use device::Float;
use device::parallel::map;

use super::counts::{COUNTS, MOST};
use crate::ops::cross_entropy::IGNORED;
use crate::ops::rows;

/// Counts the rows of `scores` as [`super::count`] does.
pub(super) fn count<T: Float>(scores: &[T], targets: &[u32], classes: usize, each: usize) -> [u32; COUNTS] {
    let per_task = rows::per_task(classes);
    let partial = map((targets.len() / each).div_ceil(per_task), |index| {
        let scores = rows::piece(scores, index, per_task * classes).chunks_exact(classes);
        let targets = rows::piece(targets, index, per_task * each).chunks_exact(each);
        let mut counts = [0; COUNTS];
        for (row, target) in scores.zip(targets).filter(|(_, target)| target[0] != IGNORED) {
            let better = above(row, target[0] as usize);
            let [all, first, among] = &mut counts;
            *all += 1;
            *first += u32::from(better == 0);
            *among += u32::from(better < MOST);
        }
        counts
    });
    partial.iter().fold([0; COUNTS], |sums, counts| std::array::from_fn(|at| sums[at] + counts[at]))
}

/// Returns the number of classes that score higher than `target`.
fn above<T: Float>(row: &[T], target: usize) -> u32 {
    let own = row.get(target).map_or(f32::NAN, |score| score.to_f32());
    let is_below = |(class, score): (usize, &T)| {
        let score = score.to_f32();
        score < own || score == own && class >= target
    };
    row.iter().enumerate().filter(|at| !is_below(*at)).count() as u32
}
