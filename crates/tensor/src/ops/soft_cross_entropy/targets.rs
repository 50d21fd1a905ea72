//! Targets: a class for each row, or a mixture of two.

use crate::Tensor;
use crate::ops::cross_entropy::IGNORED;

/// Number of values of a mixed target: class, other class, and the class's share as a fraction of [`SHARES`].
pub const MIXED: usize = 3;
/// Denominator of shares.
pub const SHARES: u32 = 1 << 16;

/// Returns whether `targets` of `rows` rows are mixtures of classes.
pub fn is_mixed(targets: &Tensor, rows: usize) -> bool {
    targets.elements() == MIXED * rows
}

pub(super) struct Targets {
    pub(super) rows: Vec<Target>,
    counted: usize,
}

/// Classes of a row: `class` with weight `share`, and `other` with 1 − `share`.
#[derive(Clone, Copy)]
pub(super) struct Target {
    pub(super) class: u32,
    pub(super) other: u32,
    pub(super) share: f32,
}

impl Targets {
    /// Reads targets of `each` values per row.
    pub(super) fn new(values: &[u32], each: usize) -> Self {
        let target = |values: &[u32]| match *values {
            [class, other, share] => Target { class, other, share: share as f32 / SHARES as f32 },
            [class, ..] => Target { class, other: class, share: 1.0 },
            [] => Target { class: IGNORED, other: IGNORED, share: 1.0 },
        };
        let rows: Vec<Target> = values.chunks_exact(each).map(target).collect();
        let counted = rows.iter().filter(|target| target.class != IGNORED).count();
        Self { rows, counted }
    }

    /// Returns the number of rows that are not ignored.
    pub(super) fn counted(&self) -> usize {
        self.counted
    }

    /// Returns all classes of rows that are not ignored.
    pub(super) fn classes(&self) -> Vec<u32> {
        let counted = self.rows.iter().filter(|target| target.class != IGNORED);
        counted.flat_map(|target| [target.class, target.other]).collect()
    }
}
