//! A linear layer: `y = activation(x · Wᵀ + b)`, with or without a bias.

use tensor::Tensor;
use tensor::ops::{self, Activation};

use super::{autocast, named, only, values_of};
use crate::error::Result;
use crate::rule::{Rule, Saved, ValueGradients};
use crate::sharded::{Var, map};
use crate::sink::{GradientSink, ready, target};
use crate::tape::Tape;
use crate::weight::Weight;

/// The results of a linear layer that are partial sums over shards, and therefore f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartialSums {
    /// Whether the output is a partial sum; the layer then has no bias and no activation.
    pub output: bool,
    /// Whether the gradient of the input is a partial sum.
    pub input_gradient: bool,
}

/// Backward of [`linear`].
#[derive(Debug)]
pub struct LinearRule {
    /// The input, if the weight is trained.
    x: Option<Tensor>,
    /// The output for ReLU, the activation's input for others.
    activated: Option<Tensor>,
    activation: Activation,
    weight: Weight,
    bias: Option<Weight>,
    sums: PartialSums,
    /// Gradient of the activation's input, kept between the input and weight halves of backward.
    gradient: Option<Tensor>,
}

/// Computes `activation(x · Wᵀ + b)`. `x_ti` is `[.., in]`, `weight` `[out, in]`, `bias` `[out]`; the result
/// is `[.., out]`.
pub fn linear(
    tape: &Tape,
    x_ti: Var,
    weight: &Weight,
    bias: Option<&Weight>,
    activation: Activation,
) -> Result<Var> {
    partial_linear(tape, x_ti, weight, bias, activation, PartialSums::default())
}

/// [`linear`] of a shard; `sums` selects the results that are partial sums.
pub fn partial_linear(
    tape: &Tape,
    x_ti: Var,
    weight: &Weight,
    bias: Option<&Weight>,
    activation: Activation,
    sums: PartialSums,
) -> Result<Var> {
    record(tape, x_ti, (weight, bias), activation, sums, |x_ti| match sums.output {
        true => partial(x_ti, weight),
        false => forward(tape, x_ti, weight, bias, activation),
    })
}

/// Computes `x · Wᵀ` with the padded rows of [`forward_padded`](ops::linear::forward_padded), for operators
/// that take them. `input_gradient` selects whether the gradient of the input is a partial sum.
pub fn padded_linear(tape: &Tape, x_ti: Var, weight: &Weight, input_gradient: bool) -> Result<Var> {
    let sums = PartialSums { output: false, input_gradient };
    record(tape, x_ti, (weight, None), Activation::None, sums, |x_ti| {
        let output = match tape.reads_output() {
            true => ops::linear::forward_padded(x_ti, &weight.values(x_ti.dtype())?)?,
            false => ops::linear::forward_padded_again(x_ti, &weight.unread_values(x_ti.dtype())?)?,
        };
        Ok(ops::linear::Output { output, pre_activation: None })
    })
}

/// Calls `forward` on each block of `x_ti` and records the layer's backward rule.
fn record(
    tape: &Tape,
    x_ti: Var,
    (weight, bias): (&Weight, Option<&Weight>),
    activation: Activation,
    sums: PartialSums,
    forward: impl Fn(&Tensor) -> tensor::Result<ops::linear::Output>,
) -> Result<Var> {
    map(tape, [x_ti], |_, [x_ti]| {
        let [x_ti] = autocast(tape, "linear", [x_ti])?;
        tape.begin("linear")?;
        let forward = forward(x_ti.tensor());
        let ops::linear::Output { output: output_to, pre_activation } = named("linear", forward)?;
        let activated = match activation {
            Activation::None => None,
            Activation::Relu => Some(output_to.clone()),
            _ => pre_activation,
        };
        tape.record_one(&[x_ti.source()], output_to, || LinearRule {
            x: weight.is_trained().then(|| x_ti.tensor().clone()),
            activated,
            activation,
            weight: weight.clone(),
            bias: bias.cloned(),
            sums,
            gradient: None,
        })
    })
}

/// Computes the f32 output of a layer without bias and activation.
fn partial(x_ti: &Tensor, weight: &Weight) -> tensor::Result<ops::linear::Output> {
    let output_to = ops::linear::partial(x_ti, &weight.values(x_ti.dtype())?)?;
    Ok(ops::linear::Output { output: output_to, pre_activation: None })
}

fn forward(
    tape: &Tape,
    x_ti: &Tensor,
    weight: &Weight,
    bias: Option<&Weight>,
    activation: Activation,
) -> tensor::Result<ops::linear::Output> {
    let is_read = tape.reads_output() || activation != Activation::None;
    let weight = if is_read { weight.values(x_ti.dtype())? } else { weight.unread_values(x_ti.dtype())? };
    let bias = values_of(bias, x_ti.dtype())?;
    match is_read {
        true => ops::linear::forward(x_ti, &weight, bias.as_ref(), activation),
        false => ops::linear::forward_again(x_ti, &weight, bias.as_ref()),
    }
}

impl Rule for LinearRule {
    fn operator(&self) -> &'static str {
        "linear"
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        let x = self.x.iter().map(|t| Saved::new("x", t));
        x.chain(self.activated.iter().map(|t| Saved::new("activated", t))).collect()
    }

    fn has_weights(&self) -> bool {
        self.weight.is_trained() || self.bias.as_ref().is_some_and(Weight::is_trained)
    }

    fn backward_input(&mut self, outputs: ValueGradients, wanted: &[bool]) -> Result<ValueGradients> {
        let mut dy_to = only(outputs)?;
        if let Some(activated) = self.activated.take() {
            dy_to = ops::linear::backward_activation(dy_to, &activated, self.activation)?;
        }
        let dx_ti = if wanted[0] {
            let weight = self.weight.values(dy_to.dtype())?;
            Some(match self.sums.input_gradient {
                true => ops::linear::partial_backward_input(&dy_to, &weight)?,
                false => ops::linear::backward_input(&dy_to, &weight)?,
            })
        } else {
            None
        };
        self.gradient = self.has_weights().then_some(dy_to);
        Ok(vec![dx_ti])
    }

    fn backward_weight(self: Box<Self>, sink: &mut dyn GradientSink) -> Result<()> {
        let LinearRule { x: x_ti, weight, bias, gradient: dy_to, .. } = *self;
        let Some(dy_to) = dy_to else { return Ok(()) };
        backward_weight(sink, dy_to, x_ti, &weight, bias.as_ref())
    }
}

/// Computes the gradients of a linear layer's trained parameters; without `x_ti`, only the bias's.
pub(super) fn backward_weight(
    sink: &mut dyn GradientSink,
    dy_to: Tensor,
    x_ti: Option<Tensor>,
    weight: &Weight,
    bias: Option<&Weight>,
) -> Result<()> {
    let weight_target = target(sink, weight)?;
    let bias_target = bias.map_or(Ok(None), |bias| target(sink, bias))?;
    match (&weight_target, &x_ti) {
        (Some(weight), Some(x_ti)) => {
            ops::linear::backward_weight(&dy_to, x_ti, weight, bias_target.as_ref())?;
        }
        _ => bias_target.map_or(Ok(()), |bias| ops::linear::backward_bias(&dy_to, &bias))?,
    }
    drop((dy_to, x_ti));
    bias.map_or(Ok(()), |bias| ready(sink, bias))?;
    ready(sink, weight)
}
