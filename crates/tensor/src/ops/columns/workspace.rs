//! Workspace of sums over the rows of a matrix.

/// Minimum number of rows that one block of threads adds.
const ROWS: usize = 32;
/// Maximum number of runs of rows.
const RUNS: usize = 256;

/// Returns the number of runs of rows into which a sum over the rows of a matrix is divided; at least 1.
pub(crate) fn runs(rows: usize) -> usize {
    rows.div_ceil(ROWS).clamp(1, RUNS)
}

/// Returns the bytes of the partial sums: an f32 row of `columns` for every run.
pub(crate) fn bytes(rows: usize, columns: usize) -> usize {
    4 * runs(rows) * columns
}
