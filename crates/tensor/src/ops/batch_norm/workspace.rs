//! Workspace of batch normalisation: partial sums over runs of consecutive rows.

/// Minimum number of rows that one block of threads adds.
const ROWS: usize = 64;
/// Maximum number of runs of rows.
const RUNS: usize = 1024;
/// Maximum elements of the partial sums of one quantity over all runs, unless one run has more.
const ELEMENTS: usize = 1 << 17;

/// Returns the number of runs of rows into which sums over the pixels of a batch are divided; at least 1.
pub(super) fn runs(rows: usize, channels: usize) -> usize {
    rows.div_ceil(ROWS).min(RUNS).min(ELEMENTS / channels.max(1)).max(1)
}

/// Returns the bytes of the partial sums: two f32 rows of `channels` for every run.
pub(super) fn bytes(rows: usize, channels: usize) -> usize {
    2 * 4 * runs(rows, channels) * channels
}
