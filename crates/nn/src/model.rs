//! Models as the trainer uses them.

use std::ops::Range;

use autograd::{Tape, Var};
use tensor::Tensor;

use crate::buffers::ModelBuffer;
use crate::error::Result;
use crate::parameters::Parameters;

/// The layers of one pipeline stage, by the model's global numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    /// Layers of the stage.
    pub layers: Range<usize>,
    /// Layers of the whole model.
    pub of: usize,
}

impl Stage {
    /// Returns the stage that holds the whole model.
    pub fn whole(layers: usize) -> Self {
        Stage { layers: 0..layers, of: layers }
    }

    /// Returns whether the stage's input is the batch.
    pub fn is_first(&self) -> bool {
        self.layers.start == 0
    }

    /// Returns whether the stage's output is the prediction.
    pub fn is_last(&self) -> bool {
        self.layers.end == self.of
    }
}

/// Input of a stage.
#[derive(Debug)]
pub enum Input {
    /// A micro-batch, the input of the first stage.
    Batch(Tensor),
    /// The output of the stage before, the input of all others.
    Hidden(Var),
}

/// A model, or one stage of it.
pub trait Model {
    /// The parameters and their uses.
    fn parameters(&self) -> &Parameters;

    /// The buffers: by default those registered with the parameters.
    fn buffers(&self) -> &[ModelBuffer] {
        self.parameters().buffers()
    }

    /// Computes a stage's output, the prediction if it is the last, from its input.
    fn forward(&self, tape: &Tape, input: Input) -> Result<Var>;

    /// Returns the scores of all classes from the prediction. The prediction is the scores itself unless the
    /// loss computes them in pieces; then it is the head's input.
    fn scores(&self, _tape: &Tape, prediction: Var) -> Result<Var> {
        Ok(prediction)
    }

    /// `scale` times the mean loss of a prediction.
    fn loss(&self, tape: &Tape, prediction: Var, targets: &Tensor, scale: f32) -> Result<Var>;
}
