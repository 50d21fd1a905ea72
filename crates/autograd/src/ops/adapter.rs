//! A linear layer with a low-rank adapter (Hu and others, *LoRA: Low-Rank Adaptation of Large Language
//! Models*, 2021).

use std::ops::Range;

use device::{Category, DType, Request};
use tensor::Tensor;
use tensor::ops::dropout::Mask;
use tensor::ops::{self, Activation};

use super::linear::{PartialSums, backward_weight};
use super::{Dropout, autocast, named, only, values_of};
use crate::error::Result;
use crate::rule::{Rule, Saved, ValueGradients};
use crate::sharded::{Var, map};
use crate::sink::{GradientSink, Target, give_gradient};
use crate::tape::Tape;
use crate::weight::Weight;

/// A term added to the output of a linear layer: `scale · B · A · dropout(x)`. Several parts of the output
/// may each have a term, with separate matrices.
#[derive(Clone, Debug)]
pub struct Adapter {
    /// Matrices A of all parts, stacked: `[parts · rank, in]`.
    pub a: Weight,
    /// Matrices B of all parts, stacked: `[rows of all parts, rank]`.
    pub b: Weight,
    /// Columns of the layer's output that each part adds to.
    pub parts: Vec<Range<usize>>,
    /// Multiplier of the term.
    pub scale: f32,
    /// Dropout of the input, with the same mask for all parts.
    pub dropout: Option<Dropout>,
    /// The results of the layer that are partial sums over shards.
    pub sums: PartialSums,
}

/// The tensors of an adapter's call that backward needs.
#[derive(Debug)]
pub(super) struct AdapterTensors {
    /// A · dropout(x), `[.., parts · rank]`.
    pub(super) low: Tensor,
    mask: Option<Mask>,
    /// Gradient of `low`, kept between the input and weight halves of backward.
    gradient: Option<Tensor>,
}

impl Adapter {
    /// Returns whether one of the matrices is trained.
    pub(super) fn is_trained(&self) -> bool {
        self.a.is_trained() || self.b.is_trained()
    }

    /// Computes a layer's output `x · Wᵀ + b` plus the adapter's term. If nothing reads the output, computes
    /// only the tensors that backward needs, and allocates the output.
    pub(super) fn forward(
        &self,
        tape: &Tape,
        x: &Tensor,
        weight: &Weight,
        bias: Option<&Weight>,
    ) -> tensor::Result<(Tensor, AdapterTensors)> {
        if tape.reads_output() || self.sums.output {
            return self.compute(tape, x, weight, bias);
        }
        let tensors = self.compress(tape, x)?;
        let weight = weight.unread_values(x.dtype())?;
        let bias = values_of(bias, x.dtype())?;
        let output = ops::linear::forward_again(x, &weight, bias.as_ref())?.output;
        Ok((output, tensors))
    }

    /// Computes a layer's output `x · Wᵀ + b` plus the adapter's term, which is computed first: the large
    /// matmul reads the term while it computes, and would otherwise delay the small matmul.
    pub(super) fn compute(
        &self,
        tape: &Tape,
        x: &Tensor,
        weight: &Weight,
        bias: Option<&Weight>,
    ) -> tensor::Result<(Tensor, AdapterTensors)> {
        let tensors = self.compress(tape, x)?;
        let expansion = self.expansion(weight.shape().rows(), x.dtype())?;
        let output = match self.sums.output {
            true => ops::linear::partial(&tensors.low, &expansion)?,
            false => ops::linear::forward(&tensors.low, &expansion, None, Activation::None)?.output,
        };
        ops::linear::add(x, &weight.values(x.dtype())?, values_of(bias, x.dtype())?.as_ref(), &output)?;
        Ok((output, tensors))
    }

    fn compress(&self, tape: &Tape, x: &Tensor) -> tensor::Result<AdapterTensors> {
        let mask = self.dropout.as_ref().and_then(|dropout| dropout.mask(tape));
        let input = dropped(x, mask)?;
        let low = ops::linear::forward(&input, &self.a.values(x.dtype())?, None, Activation::None)?.output;
        Ok(AdapterTensors { low, mask, gradient: None })
    }

    /// Returns whether the matrix from `low` to the output is B itself.
    fn is_plain(&self, outputs: usize) -> bool {
        self.scale == 1.0 && matches!(&self.parts[..], [all] if *all == (0..outputs))
    }

    /// Returns the matrix from `low` to the output: each part's `scale · B` at its rows and columns, `[out,
    /// parts · rank]`, in `dtype`.
    pub(super) fn expansion(&self, outputs: usize, dtype: DType) -> tensor::Result<Tensor> {
        match self.is_plain(outputs) {
            true => self.b.values(dtype),
            false => ops::blocks::spread(&self.b.values(dtype)?, &self.parts, outputs, self.scale),
        }
    }

    /// Computes the gradient of the layer's input, if `wanted`, from the output's gradient `dy`.
    pub(super) fn backward_input(
        &self,
        tensors: &mut AdapterTensors,
        dy: &Tensor,
        weight: &Weight,
        wanted: bool,
    ) -> tensor::Result<Option<Tensor>> {
        let low = ops::linear::backward_input(dy, &self.expansion(dy.shape().columns(), dy.dtype())?)?;
        let back = match self.sums.input_gradient {
            true => ops::linear::partial_backward_input,
            false => ops::linear::backward_input,
        };
        let dx = match (wanted, tensors.mask) {
            (true, None) => Some(back(&low, &self.a.values(low.dtype())?)?),
            (true, Some(mask)) => {
                let dx = back(&low, &self.a.values(low.dtype())?)?;
                Some(ops::dropout::apply(dx, mask, Category::ActivationGradient)?)
            }
            (false, _) => None,
        };
        tensors.gradient = Some(low);
        if let Some(dx) = &dx {
            ops::linear::add_backward_input(dy, &weight.values(dy.dtype())?, dx)?;
        }
        Ok(dx)
    }

    /// Computes the gradients of B and A from the output's gradient `dy` and the layer's input `x`.
    pub(super) fn backward_weight(
        &self,
        sink: &mut dyn GradientSink,
        tensors: AdapterTensors,
        dy: &Tensor,
        x: &Tensor,
    ) -> Result<()> {
        let AdapterTensors { low, mask, gradient } = tensors;
        give_gradient(sink, &self.b, |target| self.backward_b(dy, &low, target))?;
        drop(low);
        let Some(gradient) = &gradient else { return Ok(()) };
        let backward_a =
            |target: &Target| ops::linear::backward_weight(gradient, &dropped(x, mask)?, target, None);
        give_gradient(sink, &self.a, backward_a)
    }

    fn backward_b(&self, dy: &Tensor, low: &Tensor, target: &Target) -> tensor::Result<()> {
        let outputs = dy.shape().columns();
        if self.is_plain(outputs) {
            return ops::linear::backward_weight(dy, low, target, None);
        }
        let shape = [outputs, low.shape().columns()];
        let request = Request::new(Category::Gradient, "adapter.backward");
        let tensor = Tensor::empty(dy.device(), shape, target.tensor.dtype(), request)?;
        let all = Target { tensor, accumulate: false };
        ops::linear::backward_weight(dy, low, &all, None)?;
        ops::blocks::gather(&all.tensor, &self.parts, self.scale, target)
    }
}

/// Applies dropout to the input; without a mask, returns the input.
pub(super) fn dropped(x: &Tensor, mask: Option<Mask>) -> tensor::Result<Tensor> {
    match mask {
        Some(mask) => ops::dropout::apply(x.clone(), mask, Category::Activation),
        None => Ok(x.clone()),
    }
}

/// Backward of [`adapted_linear`].
#[derive(Debug)]
pub struct AdaptedLinearRule {
    x: Tensor,
    weight: Weight,
    bias: Option<Weight>,
    adapter: Adapter,
    tensors: AdapterTensors,
    /// The output's gradient, kept between the input and weight halves of backward.
    gradient: Option<Tensor>,
}

/// Computes [`linear`](super::linear()) without activation, plus an adapter's term.
pub fn adapted_linear(
    tape: &Tape,
    x: Var,
    weight: &Weight,
    bias: Option<&Weight>,
    adapter: &Adapter,
) -> Result<Var> {
    map(tape, [x], |_, [x]| {
        const OPERATOR: &str = "adapted_linear";
        let [x] = autocast(tape, OPERATOR, [x])?;
        tape.begin(OPERATOR)?;
        let (output, tensors) = named(OPERATOR, adapter.forward(tape, x.tensor(), weight, bias))?;
        tape.record_one(&[x.source()], output, || AdaptedLinearRule {
            x: x.tensor().clone(),
            weight: weight.clone(),
            bias: bias.cloned(),
            adapter: adapter.clone(),
            tensors,
            gradient: None,
        })
    })
}

impl Rule for AdaptedLinearRule {
    fn operator(&self) -> &'static str {
        "adapted_linear"
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        vec![Saved::new("x", &self.x), Saved::new("low", &self.tensors.low)]
    }

    fn has_weights(&self) -> bool {
        let bias = self.bias.as_ref().is_some_and(Weight::is_trained);
        self.adapter.is_trained() || self.weight.is_trained() || bias
    }

    fn backward_input(&mut self, outputs: ValueGradients, wanted: &[bool]) -> Result<ValueGradients> {
        let gradient = only(outputs)?;
        let input = self.adapter.backward_input(&mut self.tensors, &gradient, &self.weight, wanted[0])?;
        self.gradient = Some(gradient);
        Ok(vec![input])
    }

    fn backward_weight(self: Box<Self>, sink: &mut dyn GradientSink) -> Result<()> {
        let AdaptedLinearRule { x, weight, bias, adapter, tensors, gradient } = *self;
        let Some(gradient) = gradient else { return Ok(()) };
        adapter.backward_weight(sink, tensors, &gradient, &x)?;
        backward_weight(sink, gradient, Some(x), &weight, bias.as_ref())
    }
}
