//! Workspace of batch normalisation: partial sums of runs of rows.

/// Fewest rows of a run.
const ROWS: usize = 64;
/// Most runs of an array.
const RUNS: usize = 1024;
/// Most elements of one of the two sums over all runs, unless one run has more.
const ELEMENTS: usize = 1 << 17;

/// Number of runs of rows into which sums over the pixels of a batch are divided; at least 1.
pub(super) fn runs(rows: usize, channels: usize) -> usize {
    rows.div_ceil(ROWS).min(RUNS).min(ELEMENTS / channels.max(1)).max(1)
}

/// Bytes of the partial sums: two f32 rows of `channels` for every run.
pub(super) fn bytes(rows: usize, channels: usize) -> usize {
    2 * 4 * runs(rows, channels) * channels
}
