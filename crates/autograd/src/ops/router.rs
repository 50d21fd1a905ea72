//! Logits of a router in f32: `y = x · Wᵀ + b`.

use device::DType;
use tensor::Tensor;
use tensor::ops::router as kernel;

use super::lane_gradients::LaneCall;
use super::{LaneShare, named, only};
use crate::error::Result;
use crate::rule::{Rule, Saved};
use crate::sink::{GradientSink, Target, give_gradient};
use crate::tape::{Tape, Var};
use crate::weight::Weight;

const OPERATOR: &str = "router";

/// A parameter that all lanes of a layer use, and the share of one lane in its gradient.
#[derive(Clone, Debug)]
pub struct SharedWeight {
    /// The parameter.
    pub weight: Weight,
    /// The lane's share; `None` if layers are not divided.
    pub share: Option<LaneShare>,
}

/// The parameters of a router, at their uses.
#[derive(Clone, Debug)]
pub struct RouterWeights {
    /// `[experts, in]`.
    pub weight: SharedWeight,
    /// `[experts]`.
    pub bias: Option<SharedWeight>,
}

/// Backward of [`router`].
#[derive(Debug)]
pub struct RouterRule {
    x: Tensor,
    weights: RouterWeights,
    call: LaneCall,
    /// Gradient of the logits, from the input half to the weight half.
    gradient: Option<Tensor>,
}

/// `x` is `[.., in]`; the result is `[rows, experts]` f32.
///
/// # Errors
/// As [`kernel::forward`].
pub fn router(tape: &Tape, x: Var, weights: &RouterWeights) -> Result<Var> {
    tape.begin(OPERATOR)?;
    let RouterWeights { weight, bias } = weights;
    let forward = || {
        let matrix = weight.weight.values(x.tensor().dtype())?;
        let bias = bias.as_ref().map(|bias| bias.weight.values(DType::F32)).transpose()?;
        kernel::forward(x.tensor(), &matrix, bias.as_ref())
    };
    let logits = named(OPERATOR, forward())?;
    tape.record_one(&[x.source()], logits, || RouterRule {
        x: x.tensor().clone(),
        weights: weights.clone(),
        call: LaneCall::of(tape),
        gradient: None,
    })
}

impl RouterWeights {
    /// Returns whether backward computes a gradient.
    fn is_trained(&self) -> bool {
        self.weight.weight.is_trained() || self.bias.as_ref().is_some_and(|bias| bias.weight.is_trained())
    }
}

impl SharedWeight {
    /// Gives the parameter its gradient, which `compute` writes or adds to a target: with lanes, once all
    /// that are here have theirs.
    ///
    /// # Errors
    /// Errors of `compute`; out of memory; a failed collective.
    pub(super) fn give(
        &self,
        sink: &mut dyn GradientSink,
        call: &LaneCall,
        compute: impl FnOnce(&Target) -> tensor::Result<()>,
    ) -> Result<()> {
        if let Some(share) = &self.share {
            return call.sum(sink, (&self.weight, share), compute);
        }
        give_gradient(sink, &self.weight, compute)
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

    fn backward_input(
        &mut self,
        outputs: Vec<Option<Tensor>>,
        wanted: &[bool],
    ) -> Result<Vec<Option<Tensor>>> {
        let (gradient, SharedWeight { weight, share }) = (only(outputs)?, &self.weights.weight);
        let input = || {
            let dtype = if share.is_some() { DType::F32 } else { self.x.dtype() };
            kernel::backward_input(&gradient, &weight.values(self.x.dtype())?, self.x.shape(), dtype)
        };
        let input = wanted.contains(&true).then(input).transpose()?;
        self.gradient = self.has_weights().then_some(gradient);
        Ok(vec![input])
    }

    fn backward_weight(self: Box<Self>, sink: &mut dyn GradientSink) -> Result<()> {
        let RouterRule { x, weights, call, gradient } = *self;
        let Some(gradient) = gradient else { return Ok(()) };
        if let Some(bias) = &weights.bias {
            bias.give(sink, &call, |bias| kernel::backward_weight(&gradient, &x, None, Some(bias)))?;
        }
        let of_weight = |weight: &Target| kernel::backward_weight(&gradient, &x, Some(weight), None);
        weights.weight.give(sink, &call, of_weight)
    }
}
