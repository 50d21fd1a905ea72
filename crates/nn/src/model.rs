//! The model as a trainer sees it.

use std::ops::Range;

use autograd::{Tape, Var};
use tensor::Tensor;

use crate::buffers::ModelBuffer;
use crate::error::Result;
use crate::parameters::Parameters;

/// The layers that one pipeline stage holds, in the model's global numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    /// Layers of the stage.
    pub layers: Range<usize>,
    /// Layers of the whole model.
    pub of: usize,
}

impl Stage {
    /// The whole model in one stage.
    pub fn whole(layers: usize) -> Self {
        Stage { layers: 0..layers, of: layers }
    }

    /// Returns whether the stage takes the batch.
    pub fn is_first(&self) -> bool {
        self.layers.start == 0
    }

    /// Returns whether the stage gives the prediction.
    pub fn is_last(&self) -> bool {
        self.layers.end == self.of
    }
}

/// Input of a stage.
#[derive(Debug)]
pub enum Input {
    /// A micro-batch, into the first stage.
    Batch(Tensor),
    /// The stage before's output, into any other.
    Hidden(Var),
}

/// A model, or one stage of it.
pub trait Model {
    /// Its parameters and their uses.
    fn parameters(&self) -> &Parameters;

    /// Its buffers, which are those of its parameters' list unless it makes some of its own.
    fn buffers(&self) -> &[ModelBuffer] {
        self.parameters().buffers()
    }

    /// From a stage's input to its output: the prediction, if it is the last.
    fn forward(&self, tape: &Tape, input: Input) -> Result<Var>;

    /// `scale` times the mean loss of a prediction.
    fn loss(&self, tape: &Tape, prediction: Var, targets: &Tensor, scale: f32) -> Result<Var>;
}
