//! The output head of a language model, and its loss.

use autograd::ops::{LinearCrossEntropy, Pointwise};
use autograd::{Tape, Var, ops};
use tensor::Tensor;

use super::{Linear, within};
use crate::error::{NnError, Result};

/// A score for every token of the vocabulary, and the cross-entropy of the scores.
#[derive(Debug)]
pub struct TokenHead {
    output: Linear,
    soft_cap: Option<f32>,
    pieces: usize,
}

impl TokenHead {
    /// A head whose scores are those of `output`, a layer without bias, capped where `soft_cap` is not 0: x
    /// becomes c·tanh(x/c). With more than one of `pieces` the loss computes the scores of one piece of the
    /// vocabulary at a time, in forward and again in backward.
    ///
    /// # Errors
    /// A layer with an adapter and several pieces, whose scores are those of its weight alone.
    pub fn new(output: Linear, soft_cap: f64, pieces: usize) -> Result<Self> {
        if pieces > 1 && output.adapter.is_some() {
            let text =
                format!("model.loss_pieces = {pieces} has no adapter of the head, which lora.targets names");
            return Err(NnError::Sizes(text));
        }
        if pieces > 1 && output.fp8.is_some() {
            let text = format!(
                "model.loss_pieces = {pieces} computes scores in the compute type, and precision.fp8_layers \
                 names the head"
            );
            return Err(NnError::Sizes(text));
        }
        let soft_cap = (soft_cap > 0.0).then_some(soft_cap as f32);
        Ok(TokenHead { output, soft_cap, pieces })
    }

    /// From `[.., width]` to what [`TokenHead::loss`] takes: scores `[.., vocabulary]`, or `x` if the loss
    /// computes them in pieces.
    ///
    /// # Errors
    /// Another shape or type, out of memory.
    pub fn forward(&self, tape: &Tape, x: Var) -> Result<Var> {
        if self.pieces > 1 { Ok(x) } else { self.all(tape, x) }
    }

    /// From the result of [`TokenHead::forward`] to scores `[.., vocabulary]`.
    ///
    /// # Errors
    /// As there.
    pub fn scores(&self, tape: &Tape, prediction: Var) -> Result<Var> {
        if self.pieces > 1 { self.all(tape, prediction) } else { Ok(prediction) }
    }

    fn all(&self, tape: &Tape, x: Var) -> Result<Var> {
        let scores = self.output.forward(tape, x)?;
        let Some(cap) = self.soft_cap else { return Ok(scores) };
        within(tape, "soft_cap", || Ok(ops::pointwise(tape, scores, Pointwise::SoftCap(cap))?))
    }

    /// `scale` times the mean cross-entropy of a result of [`TokenHead::forward`] against `targets`, tokens
    /// as u32.
    ///
    /// # Errors
    /// Other shapes, out of memory.
    pub fn loss(&self, tape: &Tape, prediction: Var, targets: &Tensor, scale: f32) -> Result<Var> {
        within(tape, "loss", || match self.pieces {
            ..=1 => Ok(ops::cross_entropy(tape, prediction, targets, scale)?),
            pieces => {
                let settings = LinearCrossEntropy { scale, soft_cap: self.soft_cap, pieces };
                Ok(ops::linear_cross_entropy(tape, prediction, &self.output.weight, targets, settings)?)
            }
        })
    }
}
