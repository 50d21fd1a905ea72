//! The output head of a language model, and its loss.

use autograd::ops::{LinearCrossEntropy, Pointwise};
use autograd::{LaterTokens, Placement, Tape, Var, ops};
use collective::Axis;
use tensor::Tensor;

use super::edges::ShardEdges;
use super::{Linear, within};
use crate::error::{NnError, Result};
use crate::parameters::Parameters;

/// Computes a score for every token of the vocabulary, which may be sharded, and the scores' cross-entropy.
#[derive(Debug)]
pub struct TokenHead {
    layer: Linear,
    edges: ShardEdges,
    soft_cap: Option<f32>,
    pieces: usize,
}

impl TokenHead {
    /// Creates a head on `layer`, which must have no bias. If `soft_cap` c is not 0, a score x becomes
    /// c·tanh(x/c). With `pieces` above 1, the loss computes the scores of one part of a shard's vocabulary
    /// at a time, in forward and again in backward.
    ///
    /// # Errors
    /// `pieces` is above 1, but the layer has an adapter or is in FP8, which the loss does not support.
    pub fn new(parameters: &Parameters, layer: Linear, (soft_cap, pieces): (f64, usize)) -> Result<Self> {
        if pieces > 1 && layer.is_adapted() {
            let text =
                format!("model.loss_pieces = {pieces} has no adapter of the head, which lora.targets names");
            return Err(NnError::Sizes(text));
        }
        if pieces > 1 && layer.is_in_fp8() {
            let text = format!(
                "model.loss_pieces = {pieces} computes scores in the compute type, and precision.fp8_layers \
                 names the head"
            );
            return Err(NnError::Sizes(text));
        }
        let soft_cap = (soft_cap > 0.0).then_some(soft_cap as f32);
        Ok(TokenHead { layer, edges: ShardEdges::new(parameters), soft_cap, pieces })
    }

    /// Creates a head on the same weight, the parameter `weight`, for a module that predicts later tokens.
    ///
    /// # Errors
    /// The layer has an adapter or is in FP8, which modules do not share.
    pub(crate) fn shared(&self, parameters: &mut Parameters, name: &str, weight: &str) -> Result<Self> {
        let other = if self.layer.is_adapted() {
            "an adapter of the head, which lora.targets names"
        } else if self.layer.is_in_fp8() {
            "a head in FP8, which precision.fp8_layers names"
        } else {
            let layer = Linear::tied(parameters, name, weight)?;
            return Ok(TokenHead { layer, ..*self });
        };
        Err(NnError::Sizes(format!("train.predict_tokens above 1 excludes {other}")))
    }

    /// Returns whether the loss takes the head's input instead of scores.
    fn defers(&self, tape: &Tape) -> bool {
        self.pieces > 1 || self.edges.is_sharded() || tape.pieces().is_some()
    }

    /// Maps `[.., width]` to the input of [`TokenHead::loss`]: scores `[.., vocabulary]`, or `x_bld` itself
    /// if the loss computes the scores.
    ///
    /// # Errors
    /// The shape or dtype differs, or memory is exhausted.
    pub fn forward(&self, tape: &Tape, x_bld: Var) -> Result<Var> {
        if self.defers(tape) { Ok(x_bld) } else { self.all_scores(tape, x_bld) }
    }

    /// Maps the result of [`TokenHead::forward`] to scores `[.., vocabulary]`.
    ///
    /// # Errors
    /// Errors of [`TokenHead::forward`], or a collective failed.
    pub fn scores(&self, tape: &Tape, prediction: Var) -> Result<Var> {
        if self.defers(tape) { self.all_scores(tape, prediction) } else { Ok(prediction) }
    }

    fn all_scores(&self, tape: &Tape, x_bld: Var) -> Result<Var> {
        let scores_blv = self.layer.forward(tape, x_bld)?;
        let scores_blv = match self.edges.is_sharded() {
            true => scores_blv.redistribute(tape, Axis::Tensor, Placement::Replicate)?,
            false => scores_blv,
        };
        let Some(cap) = self.soft_cap else { return Ok(scores_blv) };
        within(tape, "soft_cap", || Ok(ops::pointwise(tape, scores_blv, Pointwise::SoftCap(cap))?))
    }

    /// Computes the mean cross-entropy over the pass's tokens, times `scale`, of a result of
    /// [`TokenHead::forward`] against u32 `targets_t`. If the pass has answer pairs, computes their loss and
    /// figures instead.
    ///
    /// # Errors
    /// Shapes differ, memory is exhausted, or a collective failed.
    pub fn loss(&self, tape: &Tape, prediction: Var, targets_t: &Tensor, scale: f32) -> Result<Var> {
        let is_pieced = prediction.placement(Axis::Context) != Placement::Replicate;
        ops::sum_of_pieces(tape, prediction, (targets_t, scale), |x, (targets_t, scale)| {
            self.loss_of_piece(tape, (x, is_pieced), targets_t, scale)
        })
    }

    /// [`TokenHead::loss`] against the targets of a module that predicts later tokens.
    ///
    /// # Errors
    /// Errors of [`TokenHead::loss`].
    pub fn loss_of_later(
        &self,
        tape: &Tape,
        prediction: Var,
        later: &LaterTokens,
        scale: f32,
    ) -> Result<Var> {
        let is_pieced = prediction.placement(Axis::Context) != Placement::Replicate;
        let of_targets = (&later.targets, &later.shares[..], scale);
        ops::sum_of_shares(tape, prediction, of_targets, |x, (targets_t, scale)| {
            self.loss_of_piece(tape, (x, is_pieced), targets_t, scale)
        })
    }

    fn loss_of_piece(
        &self,
        tape: &Tape,
        (x, is_pieced): (Var, bool),
        targets_t: &Tensor,
        scale: f32,
    ) -> Result<Var> {
        let computes = is_pieced && !self.edges.is_sharded() && self.pieces == 1;
        let prediction = if computes { self.all_scores(tape, x)? } else { x };
        self.mean_loss(tape, prediction, targets_t, scale)
    }

    fn mean_loss(&self, tape: &Tape, prediction: Var, targets_t: &Tensor, scale: f32) -> Result<Var> {
        let settings = LinearCrossEntropy { scale, soft_cap: self.soft_cap, pieces: self.pieces };
        if self.pieces > 1 {
            let inputs_bld = within(tape, "head", || self.edges.enter(tape, prediction))?;
            let weights: Vec<_> = self.layer.shards.iter().map(|shard| shard.weight.clone()).collect();
            return within(tape, "loss", || {
                let head = (&weights[..], self.edges.shards());
                Ok(ops::linear_cross_entropy(tape, inputs_bld, head, targets_t, settings)?)
            });
        }
        let scores_blv = match self.edges.is_sharded() {
            true => self.layer.forward(tape, prediction)?,
            false => prediction,
        };
        within(tape, "loss", || Ok(ops::cross_entropy_of_scores(tape, scores_blv, targets_t, settings)?))
    }
}
