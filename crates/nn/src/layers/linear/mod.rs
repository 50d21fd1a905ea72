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
    pub fn forward(&self, tape: &Tape, x_ti: Var) -> Result<Var> {
        self.forward_with(tape, x_ti, LinearShard::forward)
    }

    /// [`Linear::forward`] with rows that may be padded ([`ops::padded_linear`]).
    pub(super) fn forward_padded(&self, tape: &Tape, x_ti: Var) -> Result<Var> {
        self.forward_with(tape, x_ti, LinearShard::forward_padded)
    }

    fn forward_with(
        &self,
        tape: &Tape,
        x_ti: Var,
        forward: impl Fn(&LinearShard, &Tape, Var) -> Result<Var>,
    ) -> Result<Var> {
        within(tape, short(&self.name), || {
            let dtype = x_ti.tensor().dtype();
            let x_ti = self.enter(tape, x_ti)?;
            let y_to = map(tape, [x_ti], |block, [x_ti]| forward(&self.shards[block.shard], tape, x_ti))?;
            match self.style {
                Some(ParallelStyle::Column(_)) => Ok(self.edges.columns(y_to)),
                Some(ParallelStyle::Row) => self.edges.leave(tape, y_to, self.bias.as_ref(), dtype),
                None => Ok(y_to),
            }
        })
    }

    /// Applies each local shard to its block of `x_ti`, without the layer's edges.
    pub(super) fn forward_blocks(&self, tape: &Tape, x_ti: Var) -> Result<Var> {
        within(tape, short(&self.name), || {
            map(tape, [x_ti], |block, [x_ti]| self.shards[block.shard].forward(tape, x_ti))
        })
    }

    /// Applies a column-parallel layer, `function`, and a row-parallel layer, one shard after another. If the
    /// second layer is in FP8, it computes `function` itself.
    pub(super) fn forward_both(
        [first, second]: &[Linear; 2],
        tape: &Tape,
        x_ti: Var,
        function: Fp8Input,
    ) -> Result<Var> {
        let dtype = x_ti.tensor().dtype();
        let x_ti = first.enter(tape, x_ti)?;
        let y_to = map(tape, [x_ti], |block, [x_ti]| {
            let hidden = first.forward_shard(tape, block.shard, x_ti)?;
            second.forward_shard_fp8(tape, block.shard, hidden, function)
        })?;
        second.leave(tape, y_to, dtype)
    }

    /// Sums the results of a row-parallel layer's shards and adds its bias.
    pub(super) fn leave(&self, tape: &Tape, y_to: Var, dtype: DType) -> Result<Var> {
        match self.style {
            Some(ParallelStyle::Row) => {
                within(tape, short(&self.name), || self.edges.leave(tape, y_to, self.bias.as_ref(), dtype))
            }
            _ => Ok(y_to),
        }
    }

    /// Applies one shard to its block of `x_ti`, without the layer's edges.
    pub(super) fn forward_shard(&self, tape: &Tape, shard: usize, x_ti: Var) -> Result<Var> {
        within(tape, short(&self.name), || self.shards[shard].forward(tape, x_ti))
    }

    /// [`Linear::forward_shard`] applied to `function(x)`, which an FP8 layer computes itself.
    pub(super) fn forward_shard_fp8(
        &self,
        tape: &Tape,
        shard: usize,
        x_ti: Var,
        function: Fp8Input,
    ) -> Result<Var> {
        within(tape, short(&self.name), || match function {
            Fp8Input::Plain => self.shards[shard].forward(tape, x_ti),
            function => self.shards[shard].forward_fp8(tape, x_ti, function),
        })
    }

    /// The edges of the layer.
    pub(super) fn edges(&self) -> ShardEdges {
        self.edges
    }

    /// Copies the input for each shard of a column-parallel layer.
    pub(super) fn enter(&self, tape: &Tape, x_ti: Var) -> Result<Var> {
        match self.style {
            Some(ParallelStyle::Column(_)) => self.edges.enter(tape, x_ti),
            _ => Ok(x_ti),
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

    /// Number of outputs of each shard.
    pub(super) fn shard_outputs(&self) -> usize {
        self.shards.first().map_or(0, |shard| shard.weight.shape().rows())
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

    fn forward(&self, tape: &Tape, x_ti: Var) -> Result<Var> {
        let LinearShard { weight, bias, activation, sums, .. } = self;
        let activated = |y_to: Var| match activation {
            Activation::None => Ok(y_to),
            activation => Ok(ops::activation(tape, y_to, *activation)?),
        };
        if weight.is_over_rows() {
            let Some(adapter) = &self.row_adapter else { return Ok(ops::row_linear(tape, x_ti, weight)?) };
            let y_to = ops::row_linear(tape, x_ti.clone(), weight)?;
            return Ok(ops::add(tape, y_to, adapter.forward(tape, x_ti)?)?);
        }
        match (&self.adapter, &self.fp8) {
            (None, None) => Ok(ops::partial_linear(tape, x_ti, weight, bias.as_ref(), *activation, *sums)?),
            (Some(adapter), _) => activated(ops::adapted_linear(tape, x_ti, weight, bias.as_ref(), adapter)?),
            (None, Some(_)) => activated(self.forward_fp8(tape, x_ti, Fp8Input::Plain)?),
        }
    }

    /// [`LinearShard::forward`] with padded rows, if a single matmul computes the layer and nothing else.
    fn forward_padded(&self, tape: &Tape, x_ti: Var) -> Result<Var> {
        let LinearShard { weight, bias, activation, sums, .. } = self;
        let is_matmul = self.is_plain() && bias.is_none() && *activation == Activation::None;
        if !is_matmul || sums.output || weight.is_over_rows() {
            return self.forward(tape, x_ti);
        }
        Ok(ops::padded_linear(tape, x_ti, weight, sums.input_gradient)?)
    }

    fn forward_fp8(&self, tape: &Tape, x_ti: Var, function: Fp8Input) -> Result<Var> {
        let LinearShard { weight, bias, fp8, sums, .. } = self;
        let Some(copies) = fp8 else { return self.forward(tape, x_ti) };
        let copies = copies.clone();
        let weight = weight.clone();
        let bias = bias.clone();
        let layer = Fp8Linear { weight, copies, bias, sums: *sums };
        Ok(ops::fp8_linear(tape, x_ti, &layer, function)?)
    }
}

impl Layer for Linear {
    type Stream = Var;

    fn forward(&self, tape: &Tape, x_ti: Var) -> Result<Var> {
        Linear::forward(self, tape, x_ti)
    }
}

/// Returns the last component of a dotted name; enclosing scopes provide the others.
#[must_use]
pub fn short(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}
