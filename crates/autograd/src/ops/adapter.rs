//! A linear layer with a low-rank adapter (Hu and others, *LoRA: Low-Rank Adaptation of Large Language
//! Models*, 2021).

use std::ops::Range;

use device::Category;
use tensor::Tensor;
use tensor::ops::dropout::Mask;
use tensor::ops::{self, Activation};

use super::linear::backward_weight;
use super::{Dropout, named, only};
use crate::error::Result;
use crate::rule::{Rule, Saved};
use crate::sink::{GradientSink, Target, ready, target};
use crate::tape::{Tape, Var};
use crate::weight::Weight;

/// A term added to a linear layer: `scale · B · A · dropout(x)`, or one for each of several parts of the
/// output, with separate matrices.
#[derive(Clone, Debug)]
pub struct Adapter {
    /// The rows of each part's A, `[parts · rank, in]`.
    pub a: Weight,
    /// The rows of each part's B, `[rows of all parts, rank]`.
    pub b: Weight,
    /// Columns of the layer's output that each part adds to.
    pub parts: Vec<Range<usize>>,
    /// Factor of the term.
    pub scale: f32,
    /// Dropout of the input, which all parts share.
    pub dropout: Option<Dropout>,
}

/// The tensors of an adapter's call that backward needs.
#[derive(Debug)]
pub(super) struct Kept {
    /// A · dropout(x), `[.., parts · rank]`.
    pub(super) low: Tensor,
    mask: Option<Mask>,
    /// Gradient of `low`, from the input half to the weight half.
    gradient: Option<Tensor>,
}

impl Adapter {
    /// Returns whether one of the matrices is trained.
    pub(super) fn is_trained(&self) -> bool {
        self.a.is_trained() || self.b.is_trained()
    }

    /// Adds the term to `y`, a call's output, unless nothing will read it.
    pub(super) fn forward(&self, tape: &Tape, x: &Tensor, y: &Tensor) -> tensor::Result<Kept> {
        match tape.reads_output() {
            true => self.add(tape, x, y),
            false => self.compress(tape, x),
        }
    }

    /// Adds the term to `y`.
    pub(super) fn add(&self, tape: &Tape, x: &Tensor, y: &Tensor) -> tensor::Result<Kept> {
        let kept = self.compress(tape, x)?;
        ops::linear::add(&kept.low, &self.expansion(y)?, y)?;
        Ok(kept)
    }

    fn compress(&self, tape: &Tape, x: &Tensor) -> tensor::Result<Kept> {
        let mask = self.dropout.as_ref().and_then(|dropout| dropout.mask(tape));
        let input = dropped(x, mask)?;
        let low = ops::linear::forward(&input, self.a.tensor(), None, Activation::None)?.output;
        Ok(Kept { low, mask, gradient: None })
    }

    /// Returns the matrix from `low` to the output: each part's `scale · B` at its rows and columns, `[out,
    /// parts · rank]`.
    fn expansion(&self, output: &Tensor) -> tensor::Result<Tensor> {
        let matrix = ops::rearrange::spread_blocks(self.b.tensor(), &self.parts, output.shape().columns())?;
        if self.scale != 1.0 {
            ops::scale::in_place(&matrix, self.scale)?;
        }
        Ok(matrix)
    }

    /// Adds the input's gradient to `dx`, if that is wanted.
    pub(super) fn backward_input(
        &self,
        kept: &mut Kept,
        dy: &Tensor,
        dx: Option<&Tensor>,
    ) -> tensor::Result<()> {
        let low = ops::linear::backward_input(dy, &self.expansion(dy)?)?;
        match (dx, kept.mask) {
            (Some(dx), None) => ops::linear::add_backward_input(&low, self.a.tensor(), dx)?,
            (Some(dx), Some(mask)) => {
                let input = ops::linear::backward_input(&low, self.a.tensor())?;
                let input = ops::dropout::apply(input, mask, Category::ActivationGradient)?;
                ops::add::into(dx, &input)?;
            }
            (None, _) => {}
        }
        kept.gradient = Some(low);
        Ok(())
    }

    /// The gradients of B and A, from the output's gradient and the layer's input.
    pub(super) fn backward_weight(
        &self,
        sink: &mut dyn GradientSink,
        kept: Kept,
        dy: &Tensor,
        x: &Tensor,
    ) -> Result<()> {
        let Kept { low, mask, gradient } = kept;
        if let Some(target) = target(sink, &self.b)? {
            self.backward_b(dy, &low, &target)?;
        }
        drop(low);
        ready(sink, &self.b)?;
        if let (Some(target), Some(gradient)) = (target(sink, &self.a)?, &gradient) {
            ops::linear::backward_weight(gradient, &dropped(x, mask)?, &target, None)?;
        }
        ready(sink, &self.a)
    }

    fn backward_b(&self, dy: &Tensor, low: &Tensor, target: &Target) -> tensor::Result<()> {
        let shape = [dy.shape().columns(), low.shape().columns()];
        let request = device::Request::new(Category::Gradient, "adapter.backward");
        let tensor = Tensor::empty(dy.device(), shape, target.tensor.dtype(), request)?;
        let all = Target { tensor, accumulate: false };
        ops::linear::backward_weight(dy, low, &all, None)?;
        let own = ops::rearrange::gather_blocks(&all.tensor, &self.parts)?;
        if self.scale != 1.0 {
            ops::scale::in_place(&own, self.scale)?;
        }
        match target.accumulate {
            true => ops::add::into(&target.tensor, &own),
            false => target.tensor.copy_from(&own),
        }
    }
}

/// Returns the input after dropout, unchanged without a mask.
fn dropped(x: &Tensor, mask: Option<Mask>) -> tensor::Result<Tensor> {
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
    kept: Kept,
    /// The output's gradient, from the input half to the weight half.
    gradient: Option<Tensor>,
}

/// [`linear`](super::linear()) without activation, plus an adapter's term. Errors: as
/// [`ops::linear::forward`].
pub fn adapted_linear(
    tape: &Tape,
    x: Var,
    weight: &Weight,
    bias: Option<&Weight>,
    adapter: &Adapter,
) -> Result<Var> {
    const OPERATOR: &str = "adapted_linear";
    let forward = || {
        let (matrix, bias) = (weight.tensor(), bias.map(Weight::tensor));
        let output = match tape.reads_output() {
            true => ops::linear::forward(x.tensor(), matrix, bias, Activation::None)?.output,
            false => ops::linear::forward_again(x.tensor(), matrix, bias)?.output,
        };
        let kept = adapter.forward(tape, x.tensor(), &output)?;
        Ok((output, kept))
    };
    let (output, kept) = named(OPERATOR, forward())?;
    tape.record_one(&[x.source()], output, || AdaptedLinearRule {
        x: x.tensor().clone(),
        weight: weight.clone(),
        bias: bias.cloned(),
        adapter: adapter.clone(),
        kept,
        gradient: None,
    })
}

impl Rule for AdaptedLinearRule {
    fn operator(&self) -> &'static str {
        "adapted_linear"
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        vec![Saved::new("x", &self.x), Saved::new("low", &self.kept.low)]
    }

    fn has_weights(&self) -> bool {
        let bias = self.bias.as_ref().is_some_and(Weight::is_trained);
        self.adapter.is_trained() || self.weight.is_trained() || bias
    }

    fn backward_input(
        &mut self,
        outputs: Vec<Option<Tensor>>,
        wanted: &[bool],
    ) -> Result<Vec<Option<Tensor>>> {
        let gradient = only(outputs)?;
        let input = match wanted[0] {
            true => Some(ops::linear::backward_input(&gradient, self.weight.tensor())?),
            false => None,
        };
        self.adapter.backward_input(&mut self.kept, &gradient, input.as_ref())?;
        self.gradient = Some(gradient);
        Ok(vec![input])
    }

    fn backward_weight(self: Box<Self>, sink: &mut dyn GradientSink) -> Result<()> {
        let AdaptedLinearRule { x, weight, bias, adapter, kept, gradient } = *self;
        let Some(gradient) = gradient else { return Ok(()) };
        adapter.backward_weight(sink, kept, &gradient, &x)?;
        backward_weight(sink, gradient, Some(x), &weight, bias.as_ref())
    }
}
