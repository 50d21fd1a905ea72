//! A module that predicts a later token than the next one (DeepSeek-AI, *DeepSeek-V3 Technical Report*, 2024,
//! section 2.2).

use autograd::{LaterTokens, Tape, Var, ops};

use super::{Embedding, Layer, Linear, Multiplier, Norm, Residual, Stack, TokenHead, within};
use crate::error::Result;
use crate::recompute::Recompute;

/// Predicts a token from the output of the module before it, or of the model, and the token that precedes the
/// predicted one. It shares the model's token table and output head.
#[derive(Debug)]
pub struct PredictionModule<B, N> {
    /// Module name under which its operators run.
    pub(crate) name: String,
    pub(crate) embedding: (Embedding, Multiplier),
    pub(crate) embedding_norm: N,
    pub(crate) hidden_norm: N,
    /// Maps the normalised embedding and output, side by side, to the width of the model.
    pub(crate) projection: Linear,
    pub(crate) block: Stack<B>,
    pub(crate) norm: N,
    pub(crate) scale: Multiplier,
    pub(crate) head: TokenHead,
}

impl<B, N> PredictionModule<B, N>
where
    B: Layer<Stream = Residual> + 'static,
    N: Norm,
{
    /// Makes the block recompute its activations in backward.
    #[must_use]
    pub(crate) fn recomputing(self, recompute: Recompute) -> Self {
        PredictionModule { block: self.block.recomputing(recompute), ..self }
    }

    /// Maps the output `hidden_bld` before the module, and the tokens that the module reads, to the module's
    /// output.
    ///
    /// # Errors
    /// Shapes differ, or memory is exhausted.
    pub(crate) fn forward(&self, tape: &Tape, hidden_bld: Var, later: &LaterTokens) -> Result<Var> {
        let start_bld = within(tape, &self.name, || {
            let (embedding, scale) = &self.embedding;
            let rows_bld = scale.forward(tape, embedding.forward(tape, &later.inputs)?)?;
            let rows_bld = self.embedding_norm.forward(tape, rows_bld)?;
            let hidden_bld = self.hidden_norm.forward(tape, hidden_bld)?;
            let columns = hidden_bld.tensor().shape().dims().len() - 1;
            let both_ble =
                within(tape, "inputs", || Ok(ops::concatenate(tape, &[rows_bld, hidden_bld], columns)?))?;
            self.projection.forward(tape, both_ble)
        })?;
        let stream = self.block.forward(tape, Residual::new(start_bld))?;
        within(tape, &self.name, || {
            let (sum_bld, normalised_bld) = stream.normalise(tape, &self.norm)?;
            drop(sum_bld);
            Ok(normalised_bld)
        })
    }

    /// Returns the loss of the module's output against the tokens that the module predicts, as
    /// [`TokenHead::loss`].
    ///
    /// # Errors
    /// Errors of [`TokenHead::loss`].
    pub(crate) fn loss(&self, tape: &Tape, output_bld: Var, later: &LaterTokens, scale: f32) -> Result<Var> {
        within(tape, &self.name, || {
            self.head.loss_of_later(tape, self.scale.forward(tape, output_bld)?, later, scale)
        })
    }
}
