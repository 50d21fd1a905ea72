//! Who is where: an immutable value that is handed down.

use std::ops::Range;

use crate::error::{ParallelError, Result};

/// One rank's place among data × pipeline ranks. Ranks of one pipeline are neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankGrid {
    data: usize,
    pipeline: usize,
    rank: usize,
}

impl RankGrid {
    /// Rank `rank` of `data × pipeline`. Errors: a rank outside, or an empty grid.
    pub fn new(data: usize, pipeline: usize, rank: usize) -> Result<Self> {
        if data.checked_mul(pipeline).is_some_and(|world_size| rank < world_size) {
            return Ok(RankGrid { data, pipeline, rank });
        }
        Err(ParallelError::Grid(format!("rank {rank} is not one of {data} × {pipeline} ranks")))
    }

    /// Data-parallel size.
    pub fn data(&self) -> usize {
        self.data
    }

    /// Pipeline stages.
    pub fn pipeline(&self) -> usize {
        self.pipeline
    }

    /// This rank's number in the world.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Ranks in all.
    pub fn world_size(&self) -> usize {
        self.data * self.pipeline
    }

    /// Which replica of the model this rank belongs to.
    pub fn data_rank(&self) -> usize {
        self.rank / self.pipeline
    }

    /// Which stage of the pipeline it is.
    pub fn stage(&self) -> usize {
        self.rank % self.pipeline
    }

    /// The rank of the world that is at `stage` of the pipeline in replica `data_rank`.
    pub fn rank_at(&self, data_rank: usize, stage: usize) -> usize {
        data_rank * self.pipeline + stage
    }

    /// The micro-batches of `count` in a step that this rank's replica runs: a contiguous part.
    pub fn micro_batches(&self, count: usize) -> Range<usize> {
        let each = count / self.data;
        self.data_rank() * each..(self.data_rank() + 1) * each
    }

    /// The ranks of each data-parallel group: those that hold the same stage.
    pub fn data_groups(&self) -> Vec<Vec<usize>> {
        (0..self.pipeline)
            .map(|stage| (0..self.data).map(|replica| replica * self.pipeline + stage).collect())
            .collect()
    }
}
