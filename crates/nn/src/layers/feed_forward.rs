//! The feed-forward layers of a GPT-2 block.

use autograd::ops::{FeedForwardWeights, Fp8Input, Fp8Linear};
use autograd::{Tape, Var, ops};
use tensor::ops::Activation;

use super::divided::DividedLayer;
use super::{Layer, Linear, LinearCut, within};
use crate::error::Result;
use crate::init::Init;
use crate::parameters::Parameters;

/// width → 4 · width with an activation → width.
#[derive(Debug)]
pub struct FeedForward {
    layers: Layers,
    activation: Activation,
}

#[derive(Debug)]
enum Layers {
    /// One operator for both layers.
    Fused(Box<FeedForwardWeights>),
    /// Two operators, because one of the layers has an adapter, the first alone is in FP8, or they are a
    /// lane.
    Separate(Box<[Linear; 2]>),
    /// Two operators, of which the second computes the activation of its input, which it stores in FP8 only.
    Fp8(Box<(Linear, Fp8Linear)>),
}

impl FeedForward {
    /// Registers the weights of `{prefix}.mlp_fc` and `{prefix}.mlp_proj`, and with `biases` their biases,
    /// which start at zero. `init` holds the initial values of the first weight, then the second.
    ///
    /// # Errors
    /// Out of memory, a name that exists.
    pub fn new(
        parameters: &mut Parameters,
        prefix: &str,
        width: usize,
        [init, projection]: [Init; 2],
        biases: bool,
        activation: Activation,
    ) -> Result<Self> {
        let hidden = 4 * width;
        let name = |part: &str| format!("{prefix}.{part}");
        let cut = ([width, hidden], LinearCut::Outputs(&[hidden]));
        let expand = Linear::lane(parameters, &name("mlp_fc"), cut, init, biases, activation)?;
        let cut = ([hidden, width], LinearCut::Inputs);
        let project = Linear::lane(parameters, &name("mlp_proj"), cut, projection, biases, Activation::None)?;
        let is_divided = parameters.lanes().is_divided();
        let is_plain = |layer: &Linear| layer.adapter.is_none() && layer.fp8.is_none() && !is_divided;
        let layers = match (is_plain(&expand) && is_plain(&project), project.in_fp8()) {
            (_, Some(project)) => Layers::Fp8(Box::new((expand.without_activation(), project))),
            (false, None) => Layers::Separate(Box::new([expand, project])),
            (true, None) => Layers::Fused(Box::new(FeedForwardWeights {
                expand: expand.weight,
                expand_bias: expand.bias,
                project: project.weight,
                project_bias: project.bias,
            })),
        };
        Ok(FeedForward { layers, activation })
    }
}

impl DividedLayer for FeedForward {}

impl Layer for FeedForward {
    type Stream = Var;

    /// Maps `[.., width]` to the same shape.
    ///
    /// # Errors
    /// Another shape or type, out of memory.
    fn forward(&self, tape: &Tape, x: Var) -> Result<Var> {
        within(tape, "mlp", || match &self.layers {
            Layers::Fused(weights) => Ok(ops::feed_forward(tape, x, weights, self.activation)?),
            Layers::Separate(layers) => {
                let [expand, project] = &**layers;
                project.forward(tape, expand.forward(tape, x)?)
            }
            Layers::Fp8(layers) => {
                let (expand, project) = &**layers;
                let x = expand.forward(tape, x)?;
                within(tape, "mlp_proj", || {
                    Ok(ops::fp8_linear(tape, x, project, Fp8Input::Activated(self.activation))?)
                })
            }
        })
    }
}
