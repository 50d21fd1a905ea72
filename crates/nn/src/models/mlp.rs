//! A multilayer perceptron for regression.

use autograd::{Tape, Var, ops};
use device::{DType, Device};
use tensor::Tensor;
use tensor::ops::Activation;

use crate::error::{NnError, Result};
use crate::init::Init;
use crate::layers::{Linear, Stack, within};
use crate::model::{Input, Model, Stage};
use crate::parameters::Parameters;
use crate::recompute::Recompute;

/// The sizes of an [`Mlp`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MlpSizes {
    /// Inputs, hidden widths, outputs.
    pub sizes: Vec<usize>,
    /// After every layer but the last.
    pub activation: Activation,
}

/// The model, or one stage of it: linear layers named by their number.
#[derive(Debug)]
pub struct Mlp {
    parameters: Parameters,
    layers: Stack<Linear>,
}

impl Mlp {
    /// Builds the layers of `stage`, computing in `dtype`, with initial values from `seed`, uniform in ± 1/√inputs.
    pub fn new(device: &Device, sizes: &MlpSizes, stage: &Stage, seed: u64, dtype: DType) -> Result<Self> {
        let count = sizes.sizes.len().saturating_sub(1);
        if count == 0 || stage.of != count || stage.layers.is_empty() || stage.layers.end > count {
            return Err(NnError::Sizes(format!("layers {:?} are no stage of {count} layers", stage.layers)));
        }
        let mut parameters = Parameters::new(device, seed, dtype);
        let layer = |index: usize| {
            let (inputs, outputs) = (sizes.sizes[index], sizes.sizes[index + 1]);
            let activation = if index + 1 == count { Activation::None } else { sizes.activation };
            let init = Init::uniform_fan_in(inputs);
            Linear::new(&mut parameters, &index.to_string(), inputs, outputs, init, activation)
        };
        let layers = stage.layers.clone().map(layer).collect::<Result<Vec<_>>>()?;
        Ok(Mlp { parameters, layers: Stack::new(layers) })
    }

    /// The same model, of whose layers those that `recompute` says compute their activations again in backward.
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
