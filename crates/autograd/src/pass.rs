//! Settings of one pass over a micro-batch.

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
use crate::sharded::{BlockIndex, Pieces, SequencePiece};

/// Settings shared by all calls of one pass over one micro-batch. They must be equal in all stages of a
/// pipeline, and when a segment is recomputed.
#[derive(Clone, Debug, Default)]
pub struct Pass {
    /// Number of the micro-batch over all steps and ranks; seeds random numbers.
    pub micro_batch: u64,
    /// Position in its sequence at which each token's document begins, `[batch, time]` u32, never decreasing
    /// along a sequence. In a pass with a cache it may be negative (modulo 2³²), because the cache holds the
    /// first tokens. `None` if every sequence is one document.
    pub documents: Option<Tensor>,
    /// The local pieces, if sequences are computed in pieces.
    pub pieces: Option<Pieces>,
    /// The piece that is computed, in a pass within [`map`](crate::map).
    pub piece: Option<SequencePiece>,
    /// Fraction of each target's probability that is spread over all classes, as PyTorch's `label_smoothing`.
    pub label_smoothing: f32,
    /// Number of targets in the whole step, one u32, the divisor of the loss. `None` if the loss is a mean
    /// per micro-batch.
    pub target_count: Option<Tensor>,
    /// Pairs of answers whose loss the pass computes; only on the last stage.
    pub preference: Option<PreferencePass>,
    /// Inputs and targets of the modules that predict later tokens, in the order of the modules; only on the
    /// last stage, in training.
    pub later_tokens: Vec<LaterTokens>,
    /// Key and value caches of a pass that generates text.
    pub cache: Option<CachedPass>,
    /// Loss scale for gradients in f16; the loss itself is not multiplied.
    pub loss_scale: Option<LossScale>,
    /// Whether the results are discarded because another rank's are used; such a pass adds to no statistic of
    /// the step.
    pub is_padding: bool,
    /// Factors of the losses that balance the loads of experts, including the loss's own factor.
    pub balance: Option<Balance>,
    /// A mask of the rows that are tokens (1) rather than padding (0), u32 in the inputs' shape, and the
    /// number of tokens in the whole step, over which balancing losses are means. `None` if all rows count as
    /// tokens.
    pub tokens: Option<TokenRows>,
    /// Casts of operands, if weights are f32 and matmuls in half precision.
    pub autocast: Option<Arc<Autocast>>,
    /// Host memory for the inputs of recomputed segments, if these are offloaded.
    pub offload: Option<Offload>,
    /// Process groups on which the operators communicate.
    pub groups: AxisGroups,
    /// Observers of the pass's operators.
    pub observers: Observers,
}

/// Pairs of answers that a pass learns from. Its sequences alternate between a chosen answer and a rejected
/// one to the same prompt.
#[derive(Clone, Debug)]
pub struct PreferencePass {
    /// Index of the first row of each sequence's answer, u32 `[sequences]`.
    pub answers: Tensor,
    /// Log-probability of each answer under the reference model, f32 `[sequences]`, if the objective needs
    /// it.
    pub reference: Option<Tensor>,
    /// Loss of the pairs. `None`: the pass returns the log-probability of each answer, f32 `[sequences]`,
    /// instead of a loss.
    pub objective: Option<Objective>,
}

/// Inputs and targets of a module that predicts later tokens. All tensors are u32 in the shape of the pass's
/// inputs.
#[derive(Clone, Debug)]
pub struct LaterTokens {
    /// The token that the module reads at each position, which precedes its target.
    pub inputs: Tensor,
    /// The token that the module predicts at each position.
    pub targets: Tensor,
    /// Each local piece's fraction of the targets that count; empty for whole sequences.
    pub shares: Vec<f32>,
}

/// A factor of all gradients of a pass, in device memory.
#[derive(Clone, Debug)]
pub struct LossScale {
    /// The factor, f32 \[1\].
    pub scale: Tensor,
    /// Reciprocal of the scale, f32 \[1\].
    pub inverse: Tensor,
}

impl LossScale {
    /// Divides `gradient`, an f32 scalar, by the factor.
    pub(crate) fn removed_from(&self, gradient: Tensor) -> Result<Tensor> {
        let own = gradient.into_unique(Request::new(Category::ActivationGradient, "loss_scale"))?;
        ops::scale::by(&own, &self.inverse)?;
        Ok(own)
    }
}

/// State of an operator over the tokens so far, kept between passes that generate text.
#[derive(Clone, Debug)]
pub enum SequenceState {
    /// Keys and values of attention.
    Attention(Cache),
    /// State of a recurrent operator, one for each sequence.
    Recurrent(Tensor),
}

impl SequenceState {
    /// Returns the bytes of the memory.
    pub fn bytes(&self) -> usize {
        match self {
            SequenceState::Attention(cache) => cache.bytes(),
            SequenceState::Recurrent(state) => state.bytes(),
        }
    }
}

/// Caches and recurrent states that one pass uses, in the order of the operator calls that need them.
#[derive(Clone, Debug)]
pub struct CachedPass {
    caches: Rc<[SequenceState]>,
    fills: Option<usize>,
    calls: Cell<usize>,
}

impl CachedPass {
    /// Creates a pass over one whole sequence, whose keys and values fill entry `slot` of the caches. The
    /// model skips its output head.
    pub fn filling(caches: &Rc<[SequenceState]>, slot: usize) -> Self {
        CachedPass { caches: Rc::clone(caches), fills: Some(slot), calls: Cell::new(0) }
    }

    /// Creates a pass over the next token of every entry in the caches. The pass's documents contain the
    /// tokens' negated positions.
    pub fn extending(caches: &Rc<[SequenceState]>) -> Self {
        CachedPass { caches: Rc::clone(caches), fills: None, calls: Cell::new(0) }
    }

    /// The cache entry that the pass fills, if any.
    pub(crate) fn slot(&self) -> Option<usize> {
        self.fills
    }

    /// Returns the cache of the next call, if it is one of attention.
    pub(crate) fn next(&self) -> Option<&Cache> {
        match self.next_call()? {
            SequenceState::Attention(cache) => Some(cache),
            SequenceState::Recurrent(_) => None,
        }
    }

    /// Returns the state of the next call, if it is one of a recurrent operator.
    pub(crate) fn next_state(&self) -> Option<&Tensor> {
        match self.next_call()? {
            SequenceState::Recurrent(state) => Some(state),
            SequenceState::Attention(_) => None,
        }
    }

    fn next_call(&self) -> Option<&SequenceState> {
        self.caches.get(self.calls.replace(self.calls.get() + 1))
    }
}

impl Pass {
    /// Returns how a loss over targets is averaged: over the step's targets if their number is known,
    /// otherwise per micro-batch or piece, multiplied by `scale`.
    pub(crate) fn mean(&self, scale: f32) -> Mean<'_> {
        match &self.target_count {
            Some(count) => Mean { scale: 1.0, count: Some(count) },
            None => Mean::of_rows(scale),
        }
    }

    /// Returns the index within its sequence of a block's piece.
    pub(crate) fn piece_number(&self, block: Option<BlockIndex>) -> Option<usize> {
        self.pieces.as_ref()?.here.get(block?.piece?).map(|piece| piece.number)
    }

    /// Returns the pass of each local piece.
    pub(crate) fn of_pieces(&self) -> Vec<Pass> {
        let here = self.pieces.as_ref().map_or(&[][..], |pieces| &pieces.here);
        let pass_of_piece = |(index, piece): (usize, &SequencePiece)| {
            let documents = piece.documents.clone();
            let piece = Some(piece.clone());
            let slice_tokens = |tokens: &TokenRows| {
                let rows = tokens.mask.elements() / here.len();
                Some(TokenRows {
                    mask: tokens.mask.view(index * rows, [rows]).ok()?,
                    count: tokens.count.clone(),
                })
            };
            let tokens = self.tokens.as_ref().and_then(slice_tokens);
            Pass { documents, pieces: None, piece, tokens, ..self.clone() }
        };
        here.iter().enumerate().map(pass_of_piece).collect()
    }

    /// Returns whether the pass computes the next token of sequences, with one row each.
    pub fn extends_cache(&self) -> bool {
        self.cache.as_ref().is_some_and(|cache| cache.fills.is_none())
    }

    /// Returns whether the pass only fills caches, so that no prediction is needed.
    pub fn fills_cache(&self) -> bool {
        self.cache.as_ref().is_some_and(|cache| cache.fills.is_some())
    }
}
