//! The two linear layers of a transformer block with an activation in between: `y = activation(x · W1ᵀ + b1)
//! · W2ᵀ + b2`, with or without biases.
//!
//! One rule covers both layers, so that backward's matmul with W2 can apply the derivative of tanh-form GELU
//! in its epilogue.

use tensor::Tensor;
use tensor::ops::{self, Activation};

use super::linear::backward_weight;
use super::{autocast, named, only, values_of};
use crate::error::Result;
use crate::rule::{Rule, Saved, ValueGradients};
use crate::sharded::{Var, map};
use crate::sink::GradientSink;
use crate::tape::Tape;
use crate::weight::Weight;

/// The parameters of both layers.
#[derive(Clone, Debug)]
pub struct FeedForwardWeights {
    /// Weight of the first layer, `[hidden, in]`.
    pub expand: Weight,
    /// Bias of the first layer, `[hidden]`.
    pub expand_bias: Option<Weight>,
    /// Weight of the second layer, `[out, hidden]`.
    pub project: Weight,
    /// Bias of the second layer, `[out]`.
    pub project_bias: Option<Weight>,
}

impl FeedForwardWeights {
    /// Returns whether any parameter of the first and of the second layer is trained.
    fn trained(&self) -> [bool; 2] {
        [(&self.expand, &self.expand_bias), (&self.project, &self.project_bias)]
            .map(|(weight, bias)| weight.is_trained() || bias.as_ref().is_some_and(Weight::is_trained))
    }
}

/// Backward of [`feed_forward`].
#[derive(Debug)]
pub struct FeedForwardRule {
    /// The input, if the first layer's weight is trained.
    x: Option<Tensor>,
    /// Input of the activation; dropped once its derivative is taken.
    pre_activation: Option<Tensor>,
    /// Input of the second layer, if its weight is trained.
    activated: Option<Tensor>,
    activation: Activation,
    weights: FeedForwardWeights,
    /// Gradients of the output and of the pre-activation, kept between the input and weight halves of
    /// backward; only for trained layers.
    gradients: [Option<Tensor>; 2],
}

/// Computes both layers. `x_td` is `[.., in]`, the result `[.., out]`.
pub fn feed_forward(
    tape: &Tape,
    x_td: Var,
    weights: &FeedForwardWeights,
    activation: Activation,
) -> Result<Var> {
    map(tape, [x_td], |_, [x_td]| {
        let [x_td] = autocast(tape, "feed_forward", [x_td])?;
        tape.begin("feed_forward")?;
        let forward = forward(tape, x_td.tensor(), weights, activation);
        let ops::feed_forward::Output {
            output: output_td,
            pre_activation: pre_activation_tf,
            activated: activated_tf,
        } = named("feed_forward", forward)?;
        let FeedForwardWeights { expand, project, .. } = weights;
        tape.record_one(&[x_td.source()], output_td, || FeedForwardRule {
            x: expand.is_trained().then(|| x_td.tensor().clone()),
            pre_activation: Some(pre_activation_tf),
            activated: project.is_trained().then_some(activated_tf),
            activation,
            weights: weights.clone(),
            gradients: [None, None],
        })
    })
}

fn forward(
    tape: &Tape,
    x_td: &Tensor,
    weights: &FeedForwardWeights,
    activation: Activation,
) -> tensor::Result<ops::feed_forward::Output> {
    let FeedForwardWeights { expand, expand_bias, project, project_bias } = weights;
    let forward = match tape.reads_output() {
        true => ops::feed_forward::forward,
        false => ops::feed_forward::forward_again,
    };
    let dtype = x_td.dtype();
    let expand_fd = expand.values(dtype)?;
    let project_df = project.values(dtype)?;
    let expand_bias_f = values_of(expand_bias.as_ref(), dtype)?;
    let project_bias_d = values_of(project_bias.as_ref(), dtype)?;
    forward(x_td, &expand_fd, expand_bias_f.as_ref(), &project_df, project_bias_d.as_ref(), activation)
}

impl Rule for FeedForwardRule {
    fn operator(&self) -> &'static str {
        "feed_forward"
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        let pre_activation = self.pre_activation.iter().map(|t| Saved::new("pre_activation", t));
        let x = self.x.iter().map(|t| Saved::new("x", t));
        x.chain(self.activated.iter().map(|t| Saved::new("activated", t))).chain(pre_activation).collect()
    }

    fn has_weights(&self) -> bool {
        self.weights.trained().contains(&true)
    }

    fn backward_input(&mut self, outputs: ValueGradients, wanted: &[bool]) -> Result<ValueGradients> {
        let dy_td = only(outputs)?;
        let Some(pre_activation_tf) = self.pre_activation.take() else { return Ok(vec![None]) };
        let project = self.weights.project.values(dy_td.dtype())?;
        let dhidden_tf =
            ops::feed_forward::backward_input_hidden(&dy_td, &project, &pre_activation_tf, self.activation)?;
        drop((pre_activation_tf, project));
        let dx_td = match wanted.contains(&true) {
            true => Some(ops::linear::backward_input(
                &dhidden_tf,
                &self.weights.expand.values(dhidden_tf.dtype())?,
            )?),
            false => None,
        };
        let [expand, project] = self.weights.trained();
        self.gradients = [project.then_some(dy_td), expand.then_some(dhidden_tf)];
        Ok(vec![dx_td])
    }

    fn backward_weight(self: Box<Self>, sink: &mut dyn GradientSink) -> Result<()> {
        let FeedForwardRule {
            x: x_td, activated: activated_tf, weights, gradients: [dy_td, dhidden_tf], ..
        } = *self;
        let FeedForwardWeights { expand, expand_bias, project, project_bias } = weights;
        if let Some(dy_td) = dy_td {
            backward_weight(sink, dy_td, activated_tf, &project, project_bias.as_ref())?;
        }
        dhidden_tf.map_or(Ok(()), |dhidden_tf| {
            backward_weight(sink, dhidden_tf, x_td, &expand, expand_bias.as_ref())
        })
    }
}
