//! Workspace of sums over the rows of a matrix.

/// Minimum rows of a run.
const ROWS: usize = 32;
/// Maximum runs of a matrix.
const RUNS: usize = 256;

/// Returns the number of runs of rows into which a sum over the rows of a matrix is divided; at least 1.
pub(crate) fn runs(rows: usize) -> usize {
    rows.div_ceil(ROWS).clamp(1, RUNS)
}

/// Returns the bytes of the partial sums: an f32 row of `columns` for every run.
pub(crate) fn bytes(rows: usize, columns: usize) -> usize {
    4 * runs(rows) * columns
}
