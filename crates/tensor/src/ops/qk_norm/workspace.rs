//! Partial sums of the weights' gradients.

/// Fewest rows of a run.
const ROWS: usize = 8;
/// Most runs of rows.
const RUNS: usize = 512;

/// Number of runs into which rows are divided, one per GPU block or host task; at least 1.
pub(super) fn runs(rows: usize) -> usize {
    rows.div_ceil(ROWS).clamp(1, RUNS)
}
