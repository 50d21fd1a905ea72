//! Assignment of a model's stages to the ranks of a pipeline.

/// Round-robin assignment of stages (model chunks) to the ranks of a pipeline: stage s is on rank s modulo
/// the number of ranks.
///
/// Ranks are coordinates along [`Axis::Pipeline`](collective::Axis::Pipeline), not world numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StageLayout {
    /// Number of pipeline ranks; at least 1.
    pub ranks: usize,
    /// Number of stages of the model, a multiple of the ranks.
    pub stages: usize,
}

impl StageLayout {
    /// Returns the rank that holds `stage`.
    pub fn rank_of(self, stage: usize) -> usize {
        stage % self.ranks
    }

    /// Returns the index of `stage` among the stages of its rank.
    pub fn chunk_of(self, stage: usize) -> usize {
        stage / self.ranks
    }

    /// Returns the stages of `rank`, first to last.
    pub fn stages_of(self, rank: usize) -> impl Iterator<Item = usize> {
        (rank..self.stages).step_by(self.ranks)
    }

    /// Number of stages per rank.
    pub fn chunks(self) -> usize {
        self.stages / self.ranks
    }
}
