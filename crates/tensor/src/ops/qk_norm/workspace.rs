//! Sizes of the partial sums of the weights' gradients.

/// Minimum number of rows that one block of threads adds.
const ROWS: usize = 8;
/// Maximum number of runs of rows.
const RUNS: usize = 512;

/// Returns the number of runs into which rows are divided, one per GPU block or host task; at least 1.
pub(super) fn runs(rows: usize) -> usize {
    rows.div_ceil(ROWS).clamp(1, RUNS)
}
