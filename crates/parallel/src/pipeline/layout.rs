//! The stages of a model on the ranks of a pipeline.

/// Assigns stages (model chunks) to the ranks of a pipeline in turn: stage s is on rank s modulo the ranks.
///
/// A rank here is a coordinate along [`Axis::Pipeline`](crate::Axis::Pipeline), not a number in the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StageLayout {
    /// Ranks of the pipeline; at least 1.
    pub ranks: usize,
    /// Stages of the model, a multiple of the ranks.
    pub stages: usize,
}

impl StageLayout {
    /// The rank that holds `stage`.
    pub fn rank_of(self, stage: usize) -> usize {
        stage % self.ranks
    }

    /// The index of `stage` among the stages of its rank.
    pub fn chunk_of(self, stage: usize) -> usize {
        stage / self.ranks
    }

    /// The stages of `rank`, first to last.
    pub fn stages_of(self, rank: usize) -> impl Iterator<Item = usize> {
        (rank..self.stages).step_by(self.ranks)
    }

    /// Stages per rank.
    pub fn chunks(self) -> usize {
        self.stages / self.ranks
    }
}
