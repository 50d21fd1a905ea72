//! The output head of a language model, and its loss.

use autograd::ops::{LinearCrossEntropy, Pointwise};
use autograd::{Tape, Var, ops};
use collective::Axis;
use tensor::Tensor;

use super::stack::each_piece;
use super::{Linear, within};
use crate::error::{NnError, Result};

/// A score for every token of the vocabulary, which may be divided in lanes, and the cross-entropy of the
/// scores.
#[derive(Debug)]
pub struct TokenHead {
    /// The layers of the lanes that are here.
    lanes: Vec<Linear>,
    /// Number of all lanes.
    all: usize,
    /// Rows of a sequence.
    time: usize,
    soft_cap: Option<f32>,
    pieces: usize,
}

impl TokenHead {
    /// A head whose scores are those of `lanes`, layers without bias, of `all` in all, for sequences of
    /// `time` rows. Scores are capped where `soft_cap` is not 0: x becomes c·tanh(x/c). With more than one
    /// of `pieces` the loss computes the scores of one piece of a lane's vocabulary at a time, in forward and
    /// again in backward.
    ///
    /// # Errors
    /// A layer with an adapter and several pieces, whose scores are those of its weight alone.
    pub fn new(
        lanes: Vec<Linear>,
        all: usize,
        time: usize,
        (soft_cap, pieces): (f64, usize),
    ) -> Result<Self> {
        if pieces > 1 && lanes.iter().any(|lane| lane.adapter.is_some()) {
            let text =
                format!("model.loss_pieces = {pieces} has no adapter of the head, which lora.targets names");
            return Err(NnError::Sizes(text));
        }
        if pieces > 1 && lanes.iter().any(|lane| lane.fp8.is_some()) {
            let text = format!(
                "model.loss_pieces = {pieces} computes scores in the compute type, and precision.fp8_layers \
                 names the head"
            );
            return Err(NnError::Sizes(text));
        }
        let soft_cap = (soft_cap > 0.0).then_some(soft_cap as f32);
        let lanes = if all > 1 { lanes.into_iter().map(Linear::lane_of_head).collect() } else { lanes };
        Ok(TokenHead { lanes, all, time, soft_cap, pieces })
    }

    /// Returns whether the loss takes the head's input instead of scores.
    fn defers(&self, tape: &Tape) -> bool {
        self.pieces > 1 || self.all > 1 || tape.pieces_of_sequence() > 1
    }

    /// From `[.., width]` to what [`TokenHead::loss`] takes: scores `[.., vocabulary]`, or `x` if the loss
    /// computes them, in pieces or in lanes.
    ///
    /// # Errors
    /// Another shape or type, out of memory.
    pub fn forward(&self, tape: &Tape, x: Var) -> Result<Var> {
        if self.defers(tape) { Ok(x) } else { self.all_scores(tape, x) }
    }

    /// From the result of [`TokenHead::forward`] to scores `[.., vocabulary]`.
    ///
    /// # Errors
    /// As there; a failed collective.
    pub fn scores(&self, tape: &Tape, prediction: Var) -> Result<Var> {
        if self.defers(tape) { self.all_scores(tape, prediction) } else { Ok(prediction) }
    }

    fn all_scores(&self, tape: &Tape, x: Var) -> Result<Var> {
        let scores = match self.all {
            1 => self.lanes[0].forward(tape, x)?,
            _ => self.join(tape, self.lane_scores(tape, x)?)?,
        };
        let Some(cap) = self.soft_cap else { return Ok(scores) };
        within(tape, "soft_cap", || Ok(ops::pointwise(tape, scores, Pointwise::SoftCap(cap))?))
    }

    /// The inputs of the lanes that are here.
    fn lane_inputs(&self, tape: &Tape, x: Var) -> Result<Vec<Var>> {
        let time = self.time / tape.pieces_of_sequence();
        within(tape, "head", || Ok(ops::lane_inputs(tape, x, self.lanes.len(), time)?))
    }

    /// The scores of the lanes that are here, not capped.
    fn lane_scores(&self, tape: &Tape, x: Var) -> Result<Vec<Var>> {
        let inputs = self.lane_inputs(tape, x)?;
        self.lanes.iter().zip(inputs).map(|(lane, x)| lane.forward(tape, x)).collect()
    }

    /// Joins the scores of all lanes to `[.., vocabulary]`.
    fn join(&self, tape: &Tape, lanes: Vec<Var>) -> Result<Var> {
        let shape = lanes[0].tensor().shape();
        let (rows, classes) = (shape.rows(), shape.columns());
        let flat = lanes.into_iter().map(|lane| ops::reshape(tape, lane, [rows, classes]));
        let flat = flat.collect::<std::result::Result<Vec<_>, _>>()?;
        let all = ops::all_gather(tape, ops::concatenate(tape, &flat, 0)?, Axis::Tensor)?;
        let all = ops::transpose(tape, ops::reshape(tape, all, [self.all, rows, classes])?, 0, 1)?;
        let joined = shape.with(shape.dims().len() - 1, self.all * classes).unwrap_or(shape);
        Ok(ops::reshape(tape, all, joined)?)
    }

    /// The pass's mean, times `scale`, of the cross-entropy of a result of [`TokenHead::forward`] against
    /// `targets`, tokens as u32, or the loss of the pass's pairs of answers with its figures.
    ///
    /// # Errors
    /// Other shapes, out of memory, a failed collective.
    pub fn loss(&self, tape: &Tape, prediction: Var, targets: &Tensor, scale: f32) -> Result<Var> {
        let Some(pieces) = tape.pieces() else { return self.mean_loss(tape, prediction, targets, scale) };
        let inputs = within(tape, "loss", || Ok(ops::split_pieces(tape, prediction)?))?;
        let rows = targets.elements() / inputs.len();
        let inputs = inputs.into_iter().zip(&pieces.here).enumerate().collect();
        let losses = each_piece(tape, inputs, |(index, (x, piece))| {
            let targets = targets.view(index * rows, [rows])?;
            let takes_input = self.all > 1 || self.pieces > 1;
            let prediction = if takes_input { x } else { self.all_scores(tape, x)? };
            self.mean_loss(tape, prediction, &targets, scale * piece.share)
        })?;
        within(tape, "loss", || Ok(ops::sum_pieces(tape, losses)?))
    }

    fn mean_loss(&self, tape: &Tape, prediction: Var, targets: &Tensor, scale: f32) -> Result<Var> {
        let settings = LinearCrossEntropy { scale, soft_cap: self.soft_cap, pieces: self.pieces };
        // The loss of pairs needs the losses of all rows first, as one of lanes does.
        let has_pairs = tape.pass().preference.is_some();
        if (self.all > 1 || has_pairs) && self.pieces > 1 {
            let inputs = self.lane_inputs(tape, prediction)?;
            let weights: Vec<_> = self.lanes.iter().map(|lane| &lane.weight).collect();
            return within(tape, "loss", || {
                Ok(ops::divided_linear_cross_entropy(tape, inputs, &weights, self.all, targets, settings)?)
            });
        }
        if self.all > 1 {
            let scores = self.lane_scores(tape, prediction)?;
            return within(tape, "loss", || {
                Ok(ops::divided_cross_entropy(tape, scores, self.all, targets, settings)?)
            });
        }
        if has_pairs {
            let settings = LinearCrossEntropy { soft_cap: None, ..settings };
            return within(tape, "loss", || {
                Ok(ops::divided_cross_entropy(tape, vec![prediction], 1, targets, settings)?)
            });
        }
        within(tape, "loss", || match self.pieces {
            ..=1 => Ok(ops::cross_entropy(tape, prediction, targets, scale)?),
            _ => {
                let weight = &self.lanes[0].weight;
                Ok(ops::linear_cross_entropy(tape, prediction, weight, targets, settings)?)
            }
        })
    }
}
