//! The size of a schedule.

/// Numbers of ranks, chunks and micro-batches, which together with the kind define a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Shape {
    /// Number of pipeline ranks.
    pub ranks: usize,
    /// Number of stages (model chunks) per rank; 1 except for the interleaved schedule.
    pub chunks: usize,
    /// Number of micro-batches per step.
    pub micro_batches: usize,
}
