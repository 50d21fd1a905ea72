//! The interface between models and the trainer.

use std::ops::Range;

use autograd::{Dimension, Placement, Tape, Var};
use collective::Axis;
use tensor::Tensor;

use crate::buffers::ModelBuffer;
use crate::error::Result;
use crate::layers::within;
use crate::parameters::Parameters;

/// The layers of one pipeline stage, by their indices in the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    /// Indices of the stage's layers.
    pub layers: Range<usize>,
    /// Number of layers of the whole model.
    pub model_layers: usize,
}

impl Stage {
    /// Returns the single stage of a model without pipeline.
    pub fn whole(layers: usize) -> Self {
        Stage { layers: 0..layers, model_layers: layers }
    }

    /// Returns whether the stage's input is the batch.
    pub fn is_first(&self) -> bool {
        self.layers.start == 0
    }

    /// Returns whether the stage's output is the prediction.
    pub fn is_last(&self) -> bool {
        self.layers.end == self.model_layers
    }
}

/// Input of a stage.
#[derive(Debug)]
pub enum Input {
    /// A micro-batch, the input of the first stage.
    Batch(Tensor),
    /// The previous stage's output, the input of all other stages.
    Hidden(Var),
}

/// A model, or one stage of it.
pub trait Model {
    /// The parameters and their uses.
    fn parameters(&self) -> &Parameters;

    /// The buffers; by default those registered with the parameters.
    fn buffers(&self) -> &[ModelBuffer] {
        self.parameters().buffers()
    }

    /// Computes a stage's output from its input; the last stage's output is the prediction.
    fn forward(&self, tape: &Tape, input: Input) -> Result<Var>;

    /// Does the same as [`Model::forward`] for values sent between stages, which are one block of all local
    /// rows even if sequences are computed in pieces.
    fn forward_stage(&self, tape: &Tape, input: Input) -> Result<Var> {
        let input = match input {
            Input::Hidden(hidden) => Input::Hidden(pieces(tape, hidden)?),
            batch => batch,
        };
        Ok(self.forward(tape, input)?.redistribute(tape, Axis::Context, Placement::Replicate)?)
    }

    /// [`Model::loss`] of the result of [`Model::forward_stage`].
    fn loss_of_stage(&self, tape: &Tape, prediction: Var, targets: &Tensor, scale: f32) -> Result<Var> {
        // A separate module name distinguishes this from the pieces of a stage's input when runs are
        // compared.
        let prediction = within(tape, "loss", || pieces(tape, prediction))?;
        self.loss(tape, prediction, targets, scale)
    }

    /// Returns the scores of all classes from the prediction. By default the prediction is the scores; the
    /// prediction of a language model is the input of its head.
    fn scores(&self, tape: &Tape, prediction: Var) -> Result<Var> {
        Ok(prediction.redistribute(tape, Axis::Tensor, Placement::Replicate)?)
    }

    /// Computes `scale` times the mean loss of a prediction.
    fn loss(&self, tape: &Tape, prediction: Var, targets: &Tensor, scale: f32) -> Result<Var>;
}

/// Splits `rows` into sequence pieces, if sequences are computed in pieces.
fn pieces(tape: &Tape, rows: Var) -> Result<Var> {
    Ok(rows.redistribute(tape, Axis::Context, Placement::Shard(Dimension::Time))?)
}
