//! Workspace of attention over a cache.

use crate::ops::attention::Heads;

/// Positions that one thread block computes.
pub(super) const CHUNK: usize = 64;

/// Returns the bytes of the partial outputs. Each chunk has a row of values, its largest score and its sum.
pub(super) fn bytes(slots: usize, heads: Heads, capacity: usize) -> usize {
    4 * slots * heads.query * capacity.div_ceil(CHUNK) * (heads.value_width + 2)
}
