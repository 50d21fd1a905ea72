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

    /// Maps the head's input `x_bld` to scores `[.., vocabulary]`.
    ///
    /// # Errors
    /// The shape or dtype differs, memory is exhausted, or a collective failed.
    pub fn scores(&self, tape: &Tape, x_bld: Var) -> Result<Var> {
        let scores_blv = self.layer.forward(tape, x_bld)?;
        let scores_blv = match self.edges.is_sharded() {
            true => scores_blv.redistribute(tape, Axis::Tensor, Placement::Replicate)?,
            false => scores_blv,
        };
        self.capped(tape, scores_blv)
    }

    fn capped(&self, tape: &Tape, scores_blv: Var) -> Result<Var> {
        let Some(cap) = self.soft_cap else { return Ok(scores_blv) };
        within(tape, "soft_cap", || Ok(ops::pointwise(tape, scores_blv, Pointwise::SoftCap(cap))?))
    }

    /// Computes the mean cross-entropy over the pass's tokens, times `scale`, of the head's input `x_bld`
    /// against u32 `targets_t`. If the pass has answer pairs, computes their loss and figures instead.
    ///
    /// # Errors
    /// Shapes differ, memory is exhausted, or a collective failed.
    pub fn loss(&self, tape: &Tape, x_bld: Var, targets_t: &Tensor, scale: f32) -> Result<Var> {
        ops::sum_of_pieces(tape, x_bld, (targets_t, scale), |x_bld, (targets_t, scale)| {
            self.mean_loss(tape, x_bld, targets_t, scale)
        })
    }

    /// [`TokenHead::loss`] against the targets of a module that predicts later tokens.
    ///
    /// # Errors
    /// Errors of [`TokenHead::loss`].
    pub fn loss_of_later(&self, tape: &Tape, x_bld: Var, later: &LaterTokens, scale: f32) -> Result<Var> {
        let of_targets = (&later.targets, &later.shares[..], scale);
        ops::sum_of_shares(tape, x_bld, of_targets, |x_bld, (targets_t, scale)| {
            self.mean_loss(tape, x_bld, targets_t, scale)
        })
    }

    fn mean_loss(&self, tape: &Tape, x_bld: Var, targets_t: &Tensor, scale: f32) -> Result<Var> {
        let settings = LinearCrossEntropy { scale, soft_cap: self.soft_cap, pieces: self.pieces };
        if self.pieces > 1 {
            let inputs_bld = within(tape, "head", || self.edges.enter(tape, x_bld))?;
            let weights: Vec<_> = self.layer.shards.iter().map(|shard| shard.weight.clone()).collect();
            return within(tape, "loss", || {
                let head = (&weights[..], self.edges.shards());
                Ok(ops::linear_cross_entropy(tape, inputs_bld, head, targets_t, settings)?)
            });
        }
        let scores_blv = self.layer.forward_padded(tape, x_bld)?;
        // The loss caps scores in shards itself.
        let scores_blv = match self.edges.is_sharded() {
            true => scores_blv,
            false => self.capped(tape, scores_blv)?,
        };
        let scores = (scores_blv, self.layer.shard_outputs());
        within(tape, "loss", || Ok(ops::cross_entropy_of_scores(tape, scores, targets_t, settings)?))
    }
}
