//! Partial sums of the weights' gradients.

/// Fewest rows of a run.
const ROWS: usize = 8;
/// Most runs.
const RUNS: usize = 512;

/// Number of runs that rows are cut into: blocks of a GPU, tasks of the host. At least 1.
pub(super) fn runs(rows: usize) -> usize {
    rows.div_ceil(ROWS).clamp(1, RUNS)
}
