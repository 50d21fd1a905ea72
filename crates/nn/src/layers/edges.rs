//! The edges of a layer that ranks share: its input becomes a copy for each shard, and the results of the
//! shards become one again.

use autograd::{Dimension, Placement, Tape, Var, Weight};
use collective::Axis;
use device::DType;

use crate::error::Result;
use crate::parameters::Parameters;
use crate::shards::Shards;

/// The edges of a sharded layer; of a layer that is whole, they do nothing.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShardEdges {
    shards: Shards,
    /// Whether rows between layers are sharded in training.
    shards_rows: bool,
}

impl ShardEdges {
    /// The edges of the layers of a model.
    pub(super) fn new(parameters: &Parameters) -> Self {
        ShardEdges { shards: parameters.shards(), shards_rows: parameters.shards_rows() }
    }

    /// The edges of a layer that every rank has as a whole.
    pub(super) const WHOLE: Self = ShardEdges { shards: Shards::ONE, shards_rows: false };

    /// Returns whether the layer is in shards.
    pub(super) fn is_sharded(&self) -> bool {
        self.shards.is_divided()
    }

    /// Number of all shards.
    pub(super) fn shards(&self) -> usize {
        self.shards.all
    }

    /// Returns a copy of `x` for each shard that is here.
    pub(super) fn enter(&self, tape: &Tape, x: Var) -> Result<Var> {
        if self.is_sharded() { Ok(x.copied(tape, self.shards.here)?) } else { Ok(x) }
    }

    /// Returns the results of shards as shards of columns.
    pub(super) fn columns(&self, y: Var) -> Var {
        match self.is_sharded() {
            true => {
                let columns = Dimension::Columns { shards: self.shards.all };
                y.with_placement(Axis::Tensor, Placement::Shard(columns))
            }
            false => y,
        }
    }

    /// Returns the sum of the partial results of all shards, plus `bias`, rounded to `dtype`.
    pub(super) fn leave(&self, tape: &Tape, y: Var, bias: Option<&Weight>, dtype: DType) -> Result<Var> {
        if !self.is_sharded() {
            return Ok(y);
        }
        // Passes that generate text have few rows, which every rank computes.
        let shards_rows = self.shards_rows && tape.pass().cache.is_none();
        let partial = y.with_placement(Axis::Tensor, Placement::Partial);
        Ok(partial.summed(tape, (bias, dtype), shards_rows)?)
    }
}
