//! A gated feed-forward layer: `y = (activation(x · Wgᵀ) · (x · Wuᵀ)) · Wdᵀ`, called SwiGLU with SiLU and
//! GeGLU with GELU.
//!
//! One rule for all matmuls, so that gate · up is not saved: backward recomputes it in the pass that computes
//! the gradients of gate and up, in memory that is already allocated.

use tensor::Tensor;
use tensor::ops::{self, Activation};

use super::linear::backward_weight;
use super::{named, only};
use crate::error::Result;
use crate::rule::{Rule, Saved};
use crate::sink::GradientSink;
use crate::tape::{Tape, Var};
use crate::weight::Weight;

/// The parameters, at their uses.
#[derive(Clone, Debug)]
pub struct GatedFeedForwardWeights {
    /// Rows of the gate, then rows of up: `[2 · hidden, in]`.
    pub gate_up: Weight,
    /// `[out, hidden]`.
    pub down: Weight,
}

/// Backward of [`gated_feed_forward`].
#[derive(Debug)]
pub struct GatedFeedForwardRule {
    /// The input, if the weight of gate and up is trained.
    x: Option<Tensor>,
    /// x · Wg and x · Wu; the input half replaces them by their gradients.
    gate_up: Tensor,
    activation: Activation,
    weights: GatedFeedForwardWeights,
    /// The output's gradient and the input of the last matmul, from the input half to the weight half, if
    /// anything is trained.
    down: Option<(Tensor, Tensor)>,
}

/// `x` is `[.., in]`; the result is `[.., out]`. Errors: as [`ops::linear::forward`] and
/// [`ops::gate::forward`].
pub fn gated_feed_forward(
    tape: &Tape,
    x: Var,
    weights: &GatedFeedForwardWeights,
    activation: Activation,
) -> Result<Var> {
    const OPERATOR: &str = "gated_feed_forward";
    let forward = || {
        let (gate_up, down) = (weights.gate_up.tensor(), weights.down.tensor());
        let gate_up = ops::linear::forward(x.tensor(), gate_up, None, Activation::None)?.output;
        let output = match tape.reads_output() {
            true => {
                let hidden = ops::gate::forward(&gate_up, activation)?;
                ops::linear::forward(&hidden, down, None, Activation::None)?
            }
            false => ops::linear::forward_again(&ops::gate::forward_again(&gate_up)?, down, None)?,
        };
        Ok((gate_up, output.output))
    };
    let (gate_up, output) = named(OPERATOR, forward())?;
    tape.record_one(&[x.source()], output, || GatedFeedForwardRule {
        x: weights.gate_up.is_trained().then(|| x.tensor().clone()),
        gate_up,
        activation,
        weights: weights.clone(),
        down: None,
    })
}

impl Rule for GatedFeedForwardRule {
    fn operator(&self) -> &'static str {
        "gated_feed_forward"
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        let x = self.x.iter().map(|t| Saved::new("x", t));
        x.chain(std::iter::once(Saved::new("gate_up", &self.gate_up))).collect()
    }

    fn has_weights(&self) -> bool {
        self.weights.gate_up.is_trained() || self.weights.down.is_trained()
    }

    fn backward_input(
        &mut self,
        outputs: Vec<Option<Tensor>>,
        wanted: &[bool],
    ) -> Result<Vec<Option<Tensor>>> {
        let gradient = only(outputs)?;
        let hidden = ops::linear::backward_input(&gradient, self.weights.down.tensor())?;
        ops::gate::backward(&self.gate_up, &hidden, self.activation)?;
        self.down = self.has_weights().then_some((gradient, hidden));
        let input = match wanted.contains(&true) {
            true => Some(ops::linear::backward_input(&self.gate_up, self.weights.gate_up.tensor())?),
            false => None,
        };
        Ok(vec![input])
    }

    fn backward_weight(self: Box<Self>, sink: &mut dyn GradientSink) -> Result<()> {
        let GatedFeedForwardRule { x, gate_up, weights, down, .. } = *self;
        let Some((gradient, hidden)) = down else { return Ok(()) };
        backward_weight(sink, gradient, Some(hidden), &weights.down, None)?;
        backward_weight(sink, gate_up, x, &weights.gate_up, None)
    }
}
