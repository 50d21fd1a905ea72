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

/// Computes the logits. `x_td` is `[.., in]`; the result is `[rows, experts]` f32.
pub fn router(tape: &Tape, x_td: Var, weights: &RouterWeights) -> Result<Var> {
    map(tape, [x_td], |_, [x_td]| {
        tape.begin(OPERATOR)?;
        let RouterWeights { weight, bias } = weights;
        let forward = || {
            let weight_ed = weight.values(x_td.tensor().dtype())?;
            let bias = bias.as_ref().map(|bias| bias.values(DType::F32)).transpose()?;
            kernel::forward(x_td.tensor(), &weight_ed, bias.as_ref())
        };
        let logits_te = named(OPERATOR, forward())?;
        tape.record_one(&[x_td.source()], logits_te, || RouterRule {
            x: x_td.tensor().clone(),
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
        let dy_te = only(outputs)?;
        let weight = &self.weights.weight;
        let input = || {
            let dtype = if weight.copies() > 0 { DType::F32 } else { self.x.dtype() };
            kernel::backward_input(&dy_te, &weight.values(self.x.dtype())?, self.x.shape(), dtype)
        };
        let input = wanted.contains(&true).then(input).transpose()?;
        self.gradient = self.has_weights().then_some(dy_te);
        Ok(vec![input])
    }

    fn backward_weight(self: Box<Self>, sink: &mut dyn GradientSink) -> Result<()> {
        let RouterRule { x: x_td, weights, gradient: dy_te } = *self;
        let Some(dy_te) = dy_te else { return Ok(()) };
        if let Some(bias) = &weights.bias {
            give_gradient(sink, bias, |bias| kernel::backward_weight(&dy_te, &x_td, None, Some(bias)))?;
        }
        let of_weight = |weight: &Target| kernel::backward_weight(&dy_te, &x_td, Some(weight), None);
        give_gradient(sink, &weights.weight, of_weight)
    }
}
