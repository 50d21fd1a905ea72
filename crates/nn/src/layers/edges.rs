//! The edges of a tensor-parallel layer: copies its input for each shard, and combines the shards' results.

use autograd::{Dimension, Placement, Tape, Var, Weight, ops};
use collective::Axis;
use device::DType;

use crate::error::Result;
use crate::parameters::Parameters;
use crate::shards::Shards;

/// The edges of a sharded layer; for a whole layer they do nothing.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShardEdges {
    shards: Shards,
    /// Whether rows between layers are sharded in training.
    shards_rows: bool,
}

impl ShardEdges {
    /// Creates the edges of a model's layers.
    pub(super) fn new(parameters: &Parameters) -> Self {
        ShardEdges { shards: parameters.shards(), shards_rows: parameters.shards_rows() }
    }

    /// Edges of a layer that every rank has as a whole.
    pub(super) const WHOLE: Self = ShardEdges { shards: Shards::ONE, shards_rows: false };

    /// Returns whether the layer is sharded.
    pub(super) fn is_sharded(&self) -> bool {
        self.shards.is_divided()
    }

    /// Number of shards over all ranks.
    pub(super) fn shards(&self) -> usize {
        self.shards.all
    }

    /// Copies `x_bld` for each local shard.
    pub(super) fn enter(&self, tape: &Tape, x_bld: Var) -> Result<Var> {
        if self.is_sharded() { Ok(x_bld.copied(tape, self.shards.here)?) } else { Ok(x_bld) }
    }

    /// Copies all `parts` for each local shard, side by side in one copy.
    pub(super) fn enter_all(&self, tape: &Tape, parts: Vec<Var>) -> Result<Vec<Var>> {
        match self.is_sharded() {
            true => side_by_side(tape, parts, |joined| self.enter(tape, joined)),
            false => Ok(parts),
        }
    }

    /// [`ShardEdges::leave`] of several results without biases, side by side in one sum.
    pub(super) fn leave_all(&self, tape: &Tape, parts: Vec<Var>, dtype: DType) -> Result<Vec<Var>> {
        match self.is_sharded() {
            true => side_by_side(tape, parts, |joined| self.leave(tape, joined, None, dtype)),
            false => Ok(parts),
        }
    }

    /// Marks the shards' results as shards of columns.
    pub(super) fn columns(&self, y: Var) -> Var {
        match self.is_sharded() {
            true => {
                let columns = Dimension::Columns { shards: self.shards.all };
                y.with_placement(Axis::Tensor, Placement::Shard(columns))
            }
            false => y,
        }
    }

    /// Sums the partial results of all shards, adds `bias`, and rounds to `dtype`.
    pub(super) fn leave(&self, tape: &Tape, y: Var, bias: Option<&Weight>, dtype: DType) -> Result<Var> {
        if !self.is_sharded() {
            return Ok(y);
        }
        // Passes that generate text have few rows, so every rank computes all of them.
        let shards_rows = self.shards_rows && tape.pass().cache.is_none();
        let partial = y.with_placement(Axis::Tensor, Placement::Partial);
        Ok(partial.summed(tape, (bias, dtype), shards_rows)?)
    }
}

/// Applies `function` to the columns of all parts side by side, and returns each part's columns.
fn side_by_side(tape: &Tape, parts: Vec<Var>, function: impl FnOnce(Var) -> Result<Var>) -> Result<Vec<Var>> {
    let widths: Vec<_> = parts.iter().map(|part| part.tensor().shape().columns()).collect();
    let axis = parts.first().map_or(0, |part| part.tensor().shape().dims().len() - 1);
    let joined = function(ops::concatenate(tape, &parts, axis)?)?;
    let axis = joined.tensor().shape().dims().len() - 1;
    Ok(ops::split(tape, joined, axis, &widths)?)
}
