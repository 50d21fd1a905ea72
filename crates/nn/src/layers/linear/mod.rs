//! A linear layer with an optional bias and activation.

mod creation;

use autograd::ops::{Adapter, Fp8Input, Fp8Linear, Fp8Weight, PartialSums};
use autograd::{Tape, Var, Weight, map, ops};
use device::DType;
use tensor::ops::Activation;

use super::edges::ShardEdges;
use super::row_adapter::RowAdapter;
use super::{Layer, within};
use crate::error::{NnError, Result};
use crate::placements::ParallelStyle;

/// `y = activation(x · Wᵀ + b)` with weight `[outputs, inputs]` and bias `[outputs]`.
///
/// The layer is sharded if the family's placement table lists it. In a column-parallel layer, each shard
/// takes the whole input and computes some of the outputs; in a row-parallel layer, the result is the sum
/// over shards.
#[derive(Debug)]
pub struct Linear {
    name: String,
    /// The local shards.
    pub(super) shards: Vec<LinearShard>,
    style: Option<ParallelStyle>,
    edges: ShardEdges,
    /// Bias of a row-parallel layer, added to the sum over shards.
    bias: Option<Weight>,
}

/// One shard of a linear layer, or the whole layer.
#[derive(Debug)]
pub(super) struct LinearShard {
    pub(super) weight: Weight,
    pub(super) bias: Option<Weight>,
    activation: Activation,
    pub(super) adapter: Option<Adapter>,
    /// Adapter of a layer on sharded rows.
    row_adapter: Option<RowAdapter>,
    /// FP8 copies of the weight, if the layer multiplies in FP8.
    pub(super) fp8: Option<Fp8Weight>,
    sums: PartialSums,
}

impl Linear {
    /// Removes the activation.
    pub(super) fn without_activation(mut self) -> Self {
        self.shards.iter_mut().for_each(|shard| shard.activation = Activation::None);
        self
    }

    /// Maps `[.., inputs]` to `[.., outputs]`. The outputs are sharded if the layer is column-parallel.
    ///
    /// # Errors
    /// The shape or dtype differs, memory is exhausted, or a collective failed.
    pub fn forward(&self, tape: &Tape, x_bli: Var) -> Result<Var> {
        within(tape, short(&self.name), || {
            let dtype = x_bli.tensor().dtype();
            let x_bli = self.enter(tape, x_bli)?;
            let y_blo = map(tape, [x_bli], |block, [x_bli]| self.shards[block.shard].forward(tape, x_bli))?;
            match self.style {
                Some(ParallelStyle::Column(_)) => Ok(self.edges.columns(y_blo)),
                Some(ParallelStyle::Row) => self.edges.leave(tape, y_blo, self.bias.as_ref(), dtype),
                None => Ok(y_blo),
            }
        })
    }

    /// Applies each local shard to its block of `x_bli`, without the layer's edges.
    pub(super) fn forward_blocks(&self, tape: &Tape, x_bli: Var) -> Result<Var> {
        within(tape, short(&self.name), || {
            map(tape, [x_bli], |block, [x_bli]| self.shards[block.shard].forward(tape, x_bli))
        })
    }

    /// Applies a column-parallel layer, `function`, and a row-parallel layer, one shard after another. If the
    /// second layer is in FP8, it computes `function` itself.
    pub(super) fn forward_both(
        [first, second]: &[Linear; 2],
        tape: &Tape,
        x_bli: Var,
        function: Fp8Input,
    ) -> Result<Var> {
        let dtype = x_bli.tensor().dtype();
        let x_bli = first.enter(tape, x_bli)?;
        let y_blo = map(tape, [x_bli], |block, [x_bli]| {
            let hidden = first.forward_shard(tape, block.shard, x_bli)?;
            second.forward_shard_fp8(tape, block.shard, hidden, function)
        })?;
        second.leave(tape, y_blo, dtype)
    }

    /// Sums the results of a row-parallel layer's shards and adds its bias.
    pub(super) fn leave(&self, tape: &Tape, y_blo: Var, dtype: DType) -> Result<Var> {
        match self.style {
            Some(ParallelStyle::Row) => {
                within(tape, short(&self.name), || self.edges.leave(tape, y_blo, self.bias.as_ref(), dtype))
            }
            _ => Ok(y_blo),
        }
    }

    /// Applies one shard to its block of `x_bli`, without the layer's edges.
    pub(super) fn forward_shard(&self, tape: &Tape, shard: usize, x_bli: Var) -> Result<Var> {
        within(tape, short(&self.name), || self.shards[shard].forward(tape, x_bli))
    }

    /// [`Linear::forward_shard`] applied to `function(x)`, which an FP8 layer computes itself.
    pub(super) fn forward_shard_fp8(
        &self,
        tape: &Tape,
        shard: usize,
        x_bli: Var,
        function: Fp8Input,
    ) -> Result<Var> {
        within(tape, short(&self.name), || match function {
            Fp8Input::Plain => self.shards[shard].forward(tape, x_bli),
            function => self.shards[shard].forward_fp8(tape, x_bli, function),
        })
    }

    /// The edges of the layer.
    pub(super) fn edges(&self) -> ShardEdges {
        self.edges
    }

    /// Copies the input for each shard of a column-parallel layer.
    pub(super) fn enter(&self, tape: &Tape, x_bli: Var) -> Result<Var> {
        match self.style {
            Some(ParallelStyle::Column(_)) => self.edges.enter(tape, x_bli),
            _ => Ok(x_bli),
        }
    }

    /// The layer as one shard, if it is not sharded.
    pub(super) fn whole(&self) -> Option<&LinearShard> {
        self.shards.first().filter(|_| self.style.is_none())
    }

    /// Returns the layer as one shard.
    ///
    /// # Errors
    /// The layer is sharded.
    pub(super) fn into_whole(mut self) -> Result<LinearShard> {
        let text = || NnError::Sizes(format!("{} is in shards", self.name));
        self.shards.pop().ok_or_else(text)
    }

    /// Returns whether operators that produce the layer's operands must measure their largest magnitudes for
    /// FP8 matmuls.
    pub(super) fn measures(&self) -> bool {
        self.shards.iter().any(|shard| shard.fp8.as_ref().is_some_and(Fp8Weight::is_tensorwise))
    }

    /// Returns whether the layer multiplies in FP8.
    pub(super) fn is_in_fp8(&self) -> bool {
        self.shards.iter().any(|shard| shard.fp8.is_some())
    }

    /// Returns whether the layer has an adapter.
    pub(super) fn is_adapted(&self) -> bool {
        self.shards.iter().any(|shard| shard.adapter.is_some())
    }
}

impl LinearShard {
    /// Returns whether a single matmul computes the layer.
    pub(super) fn is_plain(&self) -> bool {
        self.adapter.is_none() && self.row_adapter.is_none() && self.fp8.is_none()
    }

    fn forward(&self, tape: &Tape, x_bli: Var) -> Result<Var> {
        let LinearShard { weight, bias, activation, sums, .. } = self;
        let activated = |y_blo: Var| match activation {
            Activation::None => Ok(y_blo),
            activation => Ok(ops::activation(tape, y_blo, *activation)?),
        };
        if weight.is_over_rows() {
            let Some(adapter) = &self.row_adapter else { return Ok(ops::row_linear(tape, x_bli, weight)?) };
            let y_blo = ops::row_linear(tape, x_bli.clone(), weight)?;
            return Ok(ops::add(tape, y_blo, adapter.forward(tape, x_bli)?)?);
        }
        match (&self.adapter, &self.fp8) {
            (None, None) => Ok(ops::partial_linear(tape, x_bli, weight, bias.as_ref(), *activation, *sums)?),
            (Some(adapter), _) => {
                activated(ops::adapted_linear(tape, x_bli, weight, bias.as_ref(), adapter)?)
            }
            (None, Some(_)) => activated(self.forward_fp8(tape, x_bli, Fp8Input::Plain)?),
        }
    }

    fn forward_fp8(&self, tape: &Tape, x_bli: Var, function: Fp8Input) -> Result<Var> {
        let LinearShard { weight, bias, fp8, sums, .. } = self;
        let Some(copies) = fp8 else { return self.forward(tape, x_bli) };
        let copies = copies.clone();
        let weight = weight.clone();
        let bias = bias.clone();
        let layer = Fp8Linear { weight, copies, bias, sums: *sums };
        Ok(ops::fp8_linear(tape, x_bli, &layer, function)?)
    }
}

impl Layer for Linear {
    type Stream = Var;

    fn forward(&self, tape: &Tape, x_bli: Var) -> Result<Var> {
        Linear::forward(self, tape, x_bli)
    }
}

/// Returns the last component of a dotted name; enclosing scopes provide the others.
#[must_use]
pub fn short(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}
