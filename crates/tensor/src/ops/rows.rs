//! The division of arrays into tasks, by shape alone.

use device::parallel::CHUNK;

/// Rows of one task, so that it has about [`CHUNK`] elements, and at least one row.
pub(crate) fn per_task(columns: usize) -> usize {
    (CHUNK / columns.max(1)).max(1)
}

/// The part of `x` that stands where piece `index` of pieces of `piece_len` elements stands.
pub(crate) fn piece<T>(x: &[T], index: usize, piece_len: usize) -> &[T] {
    let start = index * piece_len;
    &x[start..x.len().min(start + piece_len)]
}
