//! Every number of data-parallel ranks for a step of the small GPT, for tests behind `PLIMSOLL_LONG_TESTS`.

/// Runs with equal bits: some number of lanes and a precision, with the possible grids.
pub(crate) struct Sizes {
    /// Settings common to all runs.
    pub(crate) common: Vec<String>,
    /// Numbers of data-parallel ranks.
    pub(crate) data: &'static [usize],
}

/// Number of pipeline ranks, and further settings besides the number of data-parallel ranks.
pub(crate) const GRIDS: [(usize, &[&str]); 8] = [
    (1, &["parallel.zero_stage=0"]),
    (1, &["parallel.zero_stage=1"]),
    (1, &["parallel.zero_stage=2"]),
    (1, &["parallel.zero_stage=3"]),
    (2, &["parallel.zero_stage=0"]),
    (2, &["parallel.zero_stage=1"]),
    (2, &["parallel.zero_stage=2"]),
    (2, &["parallel.zero_stage=3"]),
];

/// Numbers of lanes, each with the numbers of data-parallel ranks tested with it.
pub(crate) const LANES: [(usize, &[usize]); 3] =
    [(8, &[1, 2, 3, 4, 5, 6, 7, 8]), (12, &[1, 2, 3, 4, 6, 12]), (35, &[1, 5, 7])];

/// Returns the runs for one entry of [`LANES`], with `of_lane` micro-batches per lane, in f32 and bf16.
pub(crate) fn rows((lanes, data): (usize, &'static [usize]), of_lane: usize) -> [Sizes; 3] {
    let precisions: [&[&str]; 3] =
        [&[], &["precision.compute=bf16"], &["precision.compute=bf16", "precision.gradients=bf16"]];
    precisions.map(|precision| {
        let step =
            [format!("parallel.lanes={lanes}"), format!("train.global_batch_size={}", 2 * lanes * of_lane)];
        let more = ["train.steps=3", "model.width=64", "model.dropout=0.1"].iter().chain(precision);
        let common = step.into_iter().chain(more.map(|set| (*set).to_owned())).collect();
        Sizes { common, data }
    })
}

/// Returns whether the long tables run.
pub(crate) fn are_wanted() -> bool {
    std::env::var_os("PLIMSOLL_LONG_TESTS").is_some()
}
