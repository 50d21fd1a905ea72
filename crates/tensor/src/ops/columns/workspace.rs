//! Workspace of sums over the rows of a matrix.

/// Fewest rows of a run.
const ROWS: usize = 32;
/// Most runs of a matrix.
const RUNS: usize = 256;

/// Number of runs of rows into which a sum over the rows of a matrix is divided; at least 1.
pub(crate) fn runs(rows: usize) -> usize {
    rows.div_ceil(ROWS).clamp(1, RUNS)
}

/// Bytes of the partial sums: an f32 row of `columns` for every run.
pub(crate) fn bytes(rows: usize, columns: usize) -> usize {
    4 * runs(rows) * columns
}
