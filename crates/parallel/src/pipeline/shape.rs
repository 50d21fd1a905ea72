//! The size of a schedule.

/// The numbers that a schedule is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Ranks of the pipeline.
    pub ranks: usize,
    /// Stages (model chunks) per rank; 1 except for the interleaved schedule.
    pub chunks: usize,
    /// Micro-batches that the pipeline runs in a step.
    pub micro_batches: usize,
}
