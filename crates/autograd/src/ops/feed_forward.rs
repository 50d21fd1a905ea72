//! The two linear layers of a transformer block with an activation between them: `y = activation(x · W1ᵀ +
//! b1) · W2ᵀ + b2`, with or without biases.
//!
//! One rule for both layers, so that the matmul with W2 in backward can apply the derivative of GELU's tanh
//! form in its epilogue.

use tensor::Tensor;
use tensor::ops::{self, Activation};

use super::{named, only};
use crate::error::Result;
use crate::rule::{Rule, Saved};
use crate::sink::GradientSink;
use crate::tape::{Tape, Var};
use crate::weight::Weight;

/// The parameters of both layers, at their uses.
#[derive(Clone, Debug)]
pub struct FeedForwardWeights {
    /// `[hidden, in]`.
    pub expand: Weight,
    /// `[hidden]`.
    pub expand_bias: Option<Weight>,
    /// `[out, hidden]`.
    pub project: Weight,
    /// `[out]`.
    pub project_bias: Option<Weight>,
}

/// Backward of [`feed_forward`].
#[derive(Debug)]
pub struct FeedForwardRule {
    x: Tensor,
    /// Input of the activation; dropped as soon as its derivative is taken.
    pre_activation: Option<Tensor>,
    activated: Tensor,
    activation: Activation,
    weights: FeedForwardWeights,
    /// Gradients of the output and of the pre-activation, from the input half to the weight half.
    gradients: Option<(Tensor, Tensor)>,
}

/// `x` is `[.., in]`; the result is `[.., out]`. Errors: as [`ops::feed_forward::forward`].
pub fn feed_forward(
    tape: &Tape,
    x: Var,
    weights: &FeedForwardWeights,
    activation: Activation,
) -> Result<Var> {
    let FeedForwardWeights { expand, expand_bias, project, project_bias } = weights;
    let forward = match tape.reads_output() {
        true => ops::feed_forward::forward,
        false => ops::feed_forward::forward_again,
    };
    let [expand_bias, project_bias] =
        [expand_bias, project_bias].map(|bias| bias.as_ref().map(Weight::tensor));
    let forward =
        forward(x.tensor(), expand.tensor(), expand_bias, project.tensor(), project_bias, activation);
    let ops::feed_forward::Output { output, pre_activation, activated } = named("feed_forward", forward)?;
    tape.record_one(&[x.source()], output, || FeedForwardRule {
        x: x.tensor().clone(),
        pre_activation: Some(pre_activation),
        activated,
        activation,
        weights: weights.clone(),
        gradients: None,
    })
}

impl Rule for FeedForwardRule {
    fn operator(&self) -> &'static str {
        "feed_forward"
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        let pre_activation = self.pre_activation.iter().map(|t| Saved::new("pre_activation", t));
        [Saved::new("x", &self.x), Saved::new("activated", &self.activated)]
            .into_iter()
            .chain(pre_activation)
            .collect()
    }

    fn has_weights(&self) -> bool {
        true
    }

    fn backward_input(
        &mut self,
        outputs: Vec<Option<Tensor>>,
        wanted: &[bool],
    ) -> Result<Vec<Option<Tensor>>> {
        let gradient = only(outputs)?;
        let Some(pre_activation) = self.pre_activation.take() else { return Ok(vec![None]) };
        let project = self.weights.project.tensor();
        let hidden =
            ops::feed_forward::backward_input_hidden(&gradient, project, &pre_activation, self.activation)?;
        drop(pre_activation);
        let input = match wanted.contains(&true) {
            true => Some(ops::linear::backward_input(&hidden, self.weights.expand.tensor())?),
            false => None,
        };
        self.gradients = Some((gradient, hidden));
        Ok(vec![input])
    }

    fn backward_weight(self: Box<Self>, sink: &mut dyn GradientSink) -> Result<()> {
        let FeedForwardRule { x, activated, weights, gradients, .. } = *self;
        let Some((gradient, hidden)) = gradients else { return Ok(()) };
        let FeedForwardWeights { expand, expand_bias, project, project_bias } = weights;
        layer(sink, gradient, activated, &project, project_bias.as_ref())?;
        layer(sink, hidden, x, &expand, expand_bias.as_ref())
    }
}

/// The weight half of one layer.
pub(super) fn layer(
    sink: &mut dyn GradientSink,
    gradient: Tensor,
    x: Tensor,
    weight: &Weight,
    bias: Option<&Weight>,
) -> Result<()> {
    let target = sink.target(weight)?;
    let bias_target = bias.map(|bias| sink.target(bias)).transpose()?;
    ops::linear::backward_weight(&gradient, &x, &target, bias_target.as_ref())?;
    drop((gradient, x));
    if let Some(bias) = bias {
        sink.ready(bias.use_id())?;
    }
    sink.ready(weight.use_id())
}
