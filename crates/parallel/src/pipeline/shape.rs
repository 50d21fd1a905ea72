//! The shape of a schedule.

/// The numbers that define a schedule together with its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Shape {
    /// Number of pipeline ranks.
    pub ranks: usize,
    /// Number of stages (model chunks) per rank; 1 except for the interleaved schedule.
    pub chunks: usize,
    /// Number of micro-batches that the pipeline runs in a step.
    pub micro_batches: usize,
}
