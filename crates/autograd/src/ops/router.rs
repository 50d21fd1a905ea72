//! Logits of a router in f32: `y = x · Wᵀ + b`.

use device::DType;
use tensor::Tensor;
use tensor::ops::router as kernel;

use super::{named, only};
use crate::error::Result;
use crate::rule::{Rule, Saved, ValueGradients};
use crate::sharded::{Var, map};
use crate::sink::{GradientSink, Target, give_gradient};
use crate::tape::Tape;
use crate::weight::Weight;

const OPERATOR: &str = "router";

/// The parameters of a router.
#[derive(Clone, Debug)]
pub struct RouterWeights {
    /// Weight, `[experts, in]`.
    pub weight: Weight,
    /// Bias, `[experts]`.
    pub bias: Option<Weight>,
}

/// Backward of [`router`].
#[derive(Debug)]
pub struct RouterRule {
    x: Tensor,
    weights: RouterWeights,
    /// Gradient of the logits, kept between the input and weight halves of backward.
    gradient: Option<Tensor>,
}

/// Computes the logits. `x` is `[.., in]`; the result is `[rows, experts]` f32.
pub fn router(tape: &Tape, x: Var, weights: &RouterWeights) -> Result<Var> {
    map(tape, [x], |_, [x]| {
        tape.begin(OPERATOR)?;
        let RouterWeights { weight, bias } = weights;
        let forward = || {
            let matrix = weight.values(x.tensor().dtype())?;
            let bias = bias.as_ref().map(|bias| bias.values(DType::F32)).transpose()?;
            kernel::forward(x.tensor(), &matrix, bias.as_ref())
        };
        let logits = named(OPERATOR, forward())?;
        tape.record_one(&[x.source()], logits, || RouterRule {
            x: x.tensor().clone(),
            weights: weights.clone(),
            gradient: None,
        })
    })
}

impl RouterWeights {
    /// Returns whether any parameter is trained.
    fn is_trained(&self) -> bool {
        self.weight.is_trained() || self.bias.as_ref().is_some_and(Weight::is_trained)
    }
}

impl Rule for RouterRule {
    fn operator(&self) -> &'static str {
        OPERATOR
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        vec![Saved::new("x", &self.x)]
    }

    fn has_weights(&self) -> bool {
        self.weights.is_trained()
    }

    fn backward_input(&mut self, outputs: ValueGradients, wanted: &[bool]) -> Result<ValueGradients> {
        let gradient = only(outputs)?;
        let weight = &self.weights.weight;
        let input = || {
            let dtype = if weight.copies() > 0 { DType::F32 } else { self.x.dtype() };
            kernel::backward_input(&gradient, &weight.values(self.x.dtype())?, self.x.shape(), dtype)
        };
        let input = wanted.contains(&true).then(input).transpose()?;
        self.gradient = self.has_weights().then_some(gradient);
        Ok(vec![input])
    }

    fn backward_weight(self: Box<Self>, sink: &mut dyn GradientSink) -> Result<()> {
        let RouterRule { x, weights, gradient } = *self;
        let Some(gradient) = gradient else { return Ok(()) };
        if let Some(bias) = &weights.bias {
            give_gradient(sink, bias, |bias| kernel::backward_weight(&gradient, &x, None, Some(bias)))?;
        }
        let of_weight = |weight: &Target| kernel::backward_weight(&gradient, &x, Some(weight), None);
        give_gradient(sink, &weights.weight, of_weight)
    }
}
