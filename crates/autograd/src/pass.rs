//! The micro-batch that a pass computes.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use collective::AxisGroups;
use device::{Category, Request};
use tensor::ops::cached_attention::Cache;
use tensor::ops::cross_entropy::Mean;
use tensor::ops::preference::Objective;
use tensor::ops::routing::{Balance, TokenRows};
use tensor::{Tensor, ops};

use crate::error::Result;
use crate::observer::Observers;
use crate::offload::Offload;
use crate::precision::Autocast;
use crate::sharded::{BlockIndex, Piece, Pieces};

/// Settings shared by all calls of one pass of one micro-batch, besides their operands. All stages of a
/// pipeline, and the second run of a recomputed segment, have the same.
#[derive(Clone, Debug, Default)]
pub struct Pass {
    /// Number of the micro-batch over all steps and ranks, of which random numbers are functions.
    pub micro_batch: u64,
    /// The position in its sequence at which the document of each token begins, `[batch, time]` u32, never
    /// decreasing along a sequence; negative, modulo 2³², where a cache holds its first tokens. `None`: every
    /// sequence is one document.
    pub documents: Option<Tensor>,
    /// The pieces that are here, if sequences are computed in pieces.
    pub pieces: Option<Pieces>,
    /// The piece that the pass computes, of a pass within [`map`](crate::map).
    pub piece: Option<Piece>,
    /// The part of each target's probability that is spread over all classes, as PyTorch's `label_smoothing`.
    pub label_smoothing: f32,
    /// The number of targets of the whole step, one u32, over which the loss of tokens is a mean; `None`:
    /// each micro-batch has a mean of its own, by which the step's is made.
    pub target_count: Option<Tensor>,
    /// The pairs of answers of a pass whose loss compares them; only on the last stage.
    pub preference: Option<PreferencePass>,
    /// The caches of a pass that generates text.
    pub cache: Option<CachedPass>,
    /// The factor of the loss, for gradients in a type of few exponents; the loss itself is not multiplied.
    pub loss_scale: Option<LossScale>,
    /// Whether the results of the pass are discarded because another rank's are used, so that it counts for
    /// no statistic of the step.
    pub is_padding: bool,
    /// Factors of the losses that balance the loads of experts, with the factor of the loss.
    pub balance: Option<Balance>,
    /// The rows that are tokens, u32 of the inputs' shape: 1, or 0 for padding; and the number of tokens of
    /// the whole step, over which balancing losses are means. `None`: all rows are tokens, or count as such.
    pub tokens: Option<TokenRows>,
    /// The casts of operands, if weights are f32 and matmuls in half precision.
    pub autocast: Option<Arc<Autocast>>,
    /// The host memory of inputs of recomputed segments, if these are offloaded.
    pub offload: Option<Offload>,
    /// The groups on which the pass's operators communicate.
    pub groups: AxisGroups,
    /// Observers of the pass's operators.
    pub observers: Observers,
}

/// The pairs of answers that a pass learns from: its sequences are a chosen answer, then a rejected one to
/// the same prompt.
#[derive(Clone, Debug)]
pub struct PreferencePass {
    /// The first row of each sequence's answer, u32 `[sequences]`.
    pub answers: Tensor,
    /// ln p of each answer by the reference model, f32 `[sequences]`, if the objective reads it.
    pub reference: Option<Tensor>,
    /// The loss of the pairs; `None`: the loss is instead ln p of each answer, f32 `[sequences]`.
    pub objective: Option<Objective>,
}

/// A factor of all gradients of a pass, on the device.
#[derive(Clone, Debug)]
pub struct LossScale {
    /// The factor, f32 \[1\].
    pub scale: Tensor,
    /// Reciprocal of the scale, f32 \[1\].
    pub inverse: Tensor,
}

impl LossScale {
    /// Divides `gradient`, a scalar f32, by the factor.
    pub(crate) fn removed_from(&self, gradient: Tensor) -> Result<Tensor> {
        let own = gradient.into_unique(Request::new(Category::ActivationGradient, "loss_scale"))?;
        ops::scale::by(&own, &self.inverse)?;
        Ok(own)
    }
}

/// Caches of keys and values, as one pass uses them: the n-th call of attention has the n-th cache.
#[derive(Clone, Debug)]
pub struct CachedPass {
    caches: Rc<[Cache]>,
    fills: Option<usize>,
    calls: Cell<usize>,
}

impl CachedPass {
    /// A pass over one whole sequence, whose keys and values fill `slot`. A model leaves out its output head.
    pub fn filling(caches: &Rc<[Cache]>, slot: usize) -> Self {
        CachedPass { caches: Rc::clone(caches), fills: Some(slot), calls: Cell::new(0) }
    }

    /// A pass over the next token of every slot; the documents of the pass have minus the tokens' positions.
    pub fn extending(caches: &Rc<[Cache]>) -> Self {
        CachedPass { caches: Rc::clone(caches), fills: None, calls: Cell::new(0) }
    }

    /// The slot that the pass fills, if any.
    pub(crate) fn slot(&self) -> Option<usize> {
        self.fills
    }

    /// The cache of the next call of attention, if any.
    pub(crate) fn next(&self) -> Option<&Cache> {
        self.caches.get(self.calls.replace(self.calls.get() + 1))
    }
}

impl Pass {
    /// Returns the mean over targets of the loss of a micro-batch, or of a piece of one, that is to be
    /// multiplied by `scale` unless the mean is that of the step.
    pub(crate) fn mean(&self, scale: f32) -> Mean<'_> {
        match &self.target_count {
            Some(count) => Mean { scale: 1.0, count: Some(count) },
            None => Mean::of_rows(scale),
        }
    }

    /// Returns the number in its sequence of the piece of a block.
    pub(crate) fn piece_number(&self, block: Option<BlockIndex>) -> Option<usize> {
        self.pieces.as_ref()?.here.get(block?.piece?).map(|piece| piece.number)
    }

    /// Returns the pass of each piece that is here.
    pub(crate) fn of_pieces(&self) -> Vec<Pass> {
        let here = self.pieces.as_ref().map_or(&[][..], |pieces| &pieces.here);
        let of = |(index, piece): (usize, &Piece)| {
            let documents = piece.documents.clone();
            let piece = Some(piece.clone());
            let of_piece = |tokens: &TokenRows| {
                let rows = tokens.mask.elements() / here.len();
                Some(TokenRows {
                    mask: tokens.mask.view(index * rows, [rows]).ok()?,
                    count: tokens.count.clone(),
                })
            };
            let tokens = self.tokens.as_ref().and_then(of_piece);
            Pass { documents, pieces: None, piece, tokens, ..self.clone() }
        };
        here.iter().enumerate().map(of).collect()
    }

    /// Returns whether the pass computes the next token of sequences, and so one row of each.
    pub fn extends_cache(&self) -> bool {
        self.cache.as_ref().is_some_and(|cache| cache.fills.is_none())
    }

    /// Returns whether the pass only fills caches, so that nothing reads a prediction.
    pub fn fills_cache(&self) -> bool {
        self.cache.as_ref().is_some_and(|cache| cache.fills.is_some())
    }
}
