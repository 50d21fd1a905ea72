//! Feed-forward layers without a gate, as in GPT-2.

use autograd::ops::{FeedForwardWeights, Fp8Input};
use autograd::{Tape, Var, ops};
use tensor::ops::Activation;

use super::linear::LinearShard;
use super::{Layer, Linear, within};
use crate::error::Result;
use crate::init::Init;
use crate::parameters::Parameters;

/// Two linear layers with an activation in between: width → hidden → width.
#[derive(Debug)]
pub struct FeedForward {
    layers: Layers,
    activation: Activation,
}

#[derive(Debug)]
enum Layers {
    /// One fused operator for both layers.
    Fused(Box<FeedForwardWeights>),
    /// Two operators, because a layer has an adapter, only the first is in FP8, or the layers are sharded.
    Separate(Box<[Linear; 2]>),
    /// Two operators. The second is in FP8: it computes the activation itself and stores only FP8 codes of
    /// it.
    Fp8(Box<[Linear; 2]>),
}

impl FeedForward {
    /// Registers the weights of two layers called `names` and, with `biases`, their biases, initialised to
    /// zero. The two `Init`s are for the first and the second weight.
    ///
    /// # Errors
    /// Memory is exhausted, or a name exists.
    pub fn new(
        parameters: &mut Parameters,
        names: [String; 2],
        [width, hidden]: [usize; 2],
        [init, projection]: [Init; 2],
        (biases, activation): (bool, Activation),
    ) -> Result<Self> {
        let [expand, project] = names;
        let expand = Linear::optional_bias(parameters, &expand, [width, hidden], init, (biases, activation))?;
        let options = (biases, Activation::None);
        let project = Linear::optional_bias(parameters, &project, [hidden, width], projection, options)?;
        let is_plain = |layer: &Linear| layer.whole().is_some_and(LinearShard::is_plain);
        let layers = match is_plain(&expand) && is_plain(&project) {
            true => Layers::Fused(Box::new(fused(expand, project)?)),
            false if project.is_in_fp8() => Layers::Fp8(Box::new([expand.without_activation(), project])),
            false => Layers::Separate(Box::new([expand, project])),
        };
        Ok(FeedForward { layers, activation })
    }
}

impl FeedForward {
    /// Computes the result of one shard from its copy of the input.
    ///
    /// # Errors
    /// The shape or dtype differs, or memory is exhausted.
    pub(super) fn forward_shard(&self, tape: &Tape, shard: usize, x_bld: Var) -> Result<Var> {
        let both = |[expand, project]: &[Linear; 2], function| {
            let hidden_blf = expand.forward_shard(tape, shard, x_bld.clone())?;
            project.forward_shard_fp8(tape, shard, hidden_blf, function)
        };
        within(tape, "mlp", || match &self.layers {
            Layers::Fused(weights) => Ok(ops::feed_forward(tape, x_bld.clone(), weights, self.activation)?),
            Layers::Separate(layers) => both(layers, Fp8Input::Plain),
            Layers::Fp8(layers) => both(layers, Fp8Input::Activated(self.activation)),
        })
    }
}

/// Returns the weights of two whole layers.
fn fused(expand: Linear, project: Linear) -> Result<FeedForwardWeights> {
    let expand = expand.into_whole()?;
    let project = project.into_whole()?;
    Ok(FeedForwardWeights {
        expand: expand.weight,
        expand_bias: expand.bias,
        project: project.weight,
        project_bias: project.bias,
    })
}

impl Layer for FeedForward {
    type Stream = Var;

    /// Maps `[.., width]` to the same shape.
    ///
    /// # Errors
    /// The shape or dtype differs, or memory is exhausted.
    fn forward(&self, tape: &Tape, x_bld: Var) -> Result<Var> {
        within(tape, "mlp", || match &self.layers {
            Layers::Fused(weights) => Ok(ops::feed_forward(tape, x_bld, weights, self.activation)?),
            Layers::Separate(layers) => Linear::forward_both(layers, tape, x_bld, Fp8Input::Plain),
            Layers::Fp8(layers) => {
                Linear::forward_both(layers, tape, x_bld, Fp8Input::Activated(self.activation))
            }
        })
    }
}
