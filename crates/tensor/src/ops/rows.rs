//! Division of arrays into tasks, by shape alone.

use device::parallel::CHUNK;

/// Returns the rows per task: at least one, and about [`CHUNK`] elements.
pub(crate) fn per_task(columns: usize) -> usize {
    (CHUNK / columns.max(1)).max(1)
}

/// Returns piece `index` of `x`, cut into pieces of `piece_len` elements; the last may be shorter.
pub(crate) fn piece<T>(x: &[T], index: usize, piece_len: usize) -> &[T] {
    let start = index * piece_len;
    &x[start..x.len().min(start + piece_len)]
}
