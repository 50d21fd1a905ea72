//! Workspace of attention over a cache.

use crate::ops::attention::Heads;

/// Positions that a block of the GPU's kernel computes.
pub(super) const CHUNK: usize = 64;

/// Bytes of the partial outputs of every chunk: a row of the values' width, its largest score and its sum.
pub(super) fn bytes(slots: usize, heads: Heads, capacity: usize) -> usize {
    4 * slots * heads.query * capacity.div_ceil(CHUNK) * (heads.value_width + 2)
}
