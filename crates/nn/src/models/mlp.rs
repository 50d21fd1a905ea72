//! A multilayer perceptron for regression.

use autograd::{Tape, Var, ops};
use keys::{RawValues, Row, choice, section};
use tensor::Tensor;
use tensor::ops::Activation;

use crate::error::{NnError, Result};
use crate::family::{Conditions, Examples, Family, MOST_EXTENT, ModelSpec};
use crate::init::Init;
use crate::layers::{Linear, Stack, within};
use crate::model::{Input, Model, Stage};
use crate::parameters::Parameters;
use crate::recompute::Recompute;

section! {
    /// Sizes and options of an [`Mlp`].
    #[derive(Eq)]
    pub struct MlpSizes = "model" {
        /// Numbers of values in the input, after each hidden layer, and in the output.
        sizes: Vec<usize> = Row::counts(2, 1, MOST_EXTENT).default("[64, 256, 256, 8]");
        /// Activation function after every layer except the last.
        activation: Activation = choice!(
            Activation, [Activation::Relu, Activation::Gelu, Activation::None]
        ).default("\"relu\"");
    }
}

/// Maximum number of sizes listed in a summary.
const MOST_NAMED: usize = 8;

/// The family `mlp`.
pub const MLP: Family = Family::new::<MlpSizes>("mlp");

impl ModelSpec for MlpSizes {
    fn layers(&self) -> usize {
        self.sizes.len().saturating_sub(1)
    }

    fn layers_key(&self) -> &'static str {
        Self::sizes
    }

    fn examples(&self) -> Examples {
        let size = |size: Option<&usize>| size.copied().unwrap_or(0);
        Examples::Numbers { inputs: size(self.sizes.first()), outputs: size(self.sizes.last()) }
    }

    fn check(&self, _: &RawValues, _: &Conditions) -> keys::Result<()> {
        Ok(())
    }

    fn build(&self, parameters: Parameters, stage: &Stage, recompute: Recompute) -> Result<Box<dyn Model>> {
        Ok(Box::new(Mlp::new(parameters, self, stage)?.recomputing(recompute)))
    }

    fn summary(&self) -> String {
        let sizes: Vec<_> = self.sizes.iter().map(usize::to_string).collect();
        let shown =
            if sizes.len() > MOST_NAMED { format!("{} layers", self.layers()) } else { sizes.join("–") };
        format!("perceptron, {shown}")
    }
}

/// A multilayer perceptron, or one stage of it. Linear layers are named by their index.
#[derive(Debug)]
pub struct Mlp {
    parameters: Parameters,
    layers: Stack<Linear>,
}

impl Mlp {
    /// Builds the layers of `stage` in the empty list `parameters`. Initial values are uniform between ±
    /// 1/√inputs.
    pub fn new(mut parameters: Parameters, sizes: &MlpSizes, stage: &Stage) -> Result<Self> {
        let count = sizes.sizes.len().saturating_sub(1);
        if count == 0 || stage.model_layers != count || stage.layers.is_empty() || stage.layers.end > count {
            return Err(NnError::Sizes(format!("layers {:?} are no stage of {count} layers", stage.layers)));
        }
        let layer = |index: usize| {
            let inputs = sizes.sizes[index];
            let outputs = sizes.sizes[index + 1];
            let name = index.to_string();
            let init = Init::uniform_fan_in(inputs);
            parameters.begin_unit();
            match index + 1 == count {
                true => Linear::head(&mut parameters, &name, [inputs, outputs], init, Some(init)),
                false => Linear::new(&mut parameters, &name, inputs, outputs, init, sizes.activation),
            }
        };
        let layers = stage.layers.clone().map(layer).collect::<Result<Vec<_>>>()?;
        Ok(Mlp { parameters, layers: Stack::new(layers) })
    }

    /// Makes the layers selected by `recompute` recompute their activations in backward.
    #[must_use]
    pub fn recomputing(self, recompute: Recompute) -> Self {
        Mlp { layers: self.layers.recomputing(recompute), ..self }
    }
}

impl Model for Mlp {
    fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    fn forward(&self, tape: &Tape, input: Input) -> Result<Var> {
        let x = match input {
            Input::Batch(batch) => tape.constant(batch),
            Input::Hidden(hidden) => hidden,
        };
        self.layers.forward(tape, x)
    }

    fn loss(&self, tape: &Tape, prediction: Var, targets: &Tensor, scale: f32) -> Result<Var> {
        within(tape, "loss", || Ok(ops::mse(tape, prediction, targets, scale)?))
    }
}
