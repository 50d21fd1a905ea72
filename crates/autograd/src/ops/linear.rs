//! A linear layer: `y = activation(x · Wᵀ + b)`, with or without a bias.

use tensor::Tensor;
use tensor::ops::{self, Activation};

use super::{named, only};
use crate::error::Result;
use crate::rule::{Rule, Saved};
use crate::sink::GradientSink;
use crate::tape::{Tape, Var};
use crate::weight::Weight;

/// Backward of [`linear`].
#[derive(Debug)]
pub struct LinearRule {
    x: Tensor,
    /// The output for ReLU, the input of the activation for others.
    activated: Option<Tensor>,
    activation: Activation,
    weight: Weight,
    bias: Option<Weight>,
    /// Gradient of the activation's input, from the input half to the weight half.
    gradient: Option<Tensor>,
}

/// `x` is `[.., in]`, `weight` `[out, in]`, `bias` `[out]`; the result is `[.., out]`.
/// Errors: as [`ops::linear::forward`].
pub fn linear(
    tape: &Tape,
    x: Var,
    weight: &Weight,
    bias: Option<&Weight>,
    activation: Activation,
) -> Result<Var> {
    let (values, matrix, bias_tensor) = (x.tensor(), weight.tensor(), bias.map(Weight::tensor));
    let forward = match activation {
        Activation::None if !tape.reads_output() => ops::linear::forward_again(values, matrix, bias_tensor),
        _ => ops::linear::forward(values, matrix, bias_tensor, activation),
    };
    let ops::linear::Output { output, pre_activation } = named("linear", forward)?;
    let activated = match activation {
        Activation::None => None,
        Activation::Relu => Some(output.clone()),
        _ => pre_activation,
    };
    tape.record_one(&[x.source()], output, || LinearRule {
        x: x.tensor().clone(),
        activated,
        activation,
        weight: weight.clone(),
        bias: bias.cloned(),
        gradient: None,
    })
}

impl Rule for LinearRule {
    fn operator(&self) -> &'static str {
        "linear"
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        let activated = self.activated.iter().map(|t| Saved::new("activated", t));
        std::iter::once(Saved::new("x", &self.x)).chain(activated).collect()
    }

    fn has_weights(&self) -> bool {
        true
    }

    fn backward_input(
        &mut self,
        outputs: Vec<Option<Tensor>>,
        wanted: &[bool],
    ) -> Result<Vec<Option<Tensor>>> {
        let mut gradient = only(outputs)?;
        if let Some(activated) = self.activated.take() {
            gradient = ops::linear::backward_activation(gradient, &activated, self.activation)?;
        }
        let input = if wanted[0] {
            Some(ops::linear::backward_input(&gradient, self.weight.tensor())?)
        } else {
            None
        };
        self.gradient = Some(gradient);
        Ok(vec![input])
    }

    fn backward_weight(self: Box<Self>, sink: &mut dyn GradientSink) -> Result<()> {
        let Some(gradient) = &self.gradient else { return Ok(()) };
        let weight = sink.target(&self.weight)?;
        let bias = self.bias.as_ref().map(|bias| sink.target(bias)).transpose()?;
        ops::linear::backward_weight(gradient, &self.x, &weight, bias.as_ref())?;
        drop(self.gradient);
        drop(self.x);
        if let Some(bias) = &self.bias {
            sink.ready(bias.use_id())?;
        }
        sink.ready(self.weight.use_id())
    }
}
