//! Causal self-attention with rotary position embeddings.

use autograd::ops::AttentionMeasures;
use autograd::{Tape, Var, Weight, ops};
use device::{Backend, Category, Device, Request};
use tensor::ops::attention::{Heads, Qkv, Settings};
use tensor::ops::rotary::Frequencies;
use tensor::{DType, Tensor};

use super::divided::{self, DividedLayer};
use super::latent_qkv::QkvInput;
use super::stack::each_piece;
use super::{Dropout, LatentQkv, Layer, Linear, QkNorm, QkNormSpan, within};
use crate::error::{NnError, Result};

/// Cosines and sines of the angles of all positions, shared by the layers of a stage: `[context, columns]`
/// f32, for the first columns of a head. It is not a buffer of the model's state, because the sizes
/// determine it.
#[derive(Clone, Debug)]
pub struct RotaryTable {
    table: Tensor,
}

impl RotaryTable {
    /// Makes the table of positions 0 to `context`.
    ///
    /// # Errors
    /// Out of memory.
    pub fn new(device: &Device, frequencies: Frequencies, context: usize) -> Result<Self> {
        let width = frequencies.width;
        Self::with(device, [context, width], || frequencies.table(context))
    }

    /// Makes a table that rotates nothing, for heads of `width` columns.
    ///
    /// # Errors
    /// Out of memory.
    pub fn still(device: &Device, width: usize, context: usize) -> Result<Self> {
        let row = || (0..width).map(|column| if column < width / 2 { 1.0 } else { 0.0 });
        Self::with(device, [context, width], || (0..context).flat_map(|_| row()).collect())
    }

    fn with(device: &Device, shape: [usize; 2], values: impl FnOnce() -> Vec<f32>) -> Result<Self> {
        let _scope = device.module("rotary");
        let table = Tensor::empty(device, shape, DType::F32, Request::new(Category::Buffer, "rotary"))?;
        if device.backend() != Backend::Meta {
            table.set(&values())?;
        }
        Ok(RotaryTable { table })
    }

    /// Columns of a head that rotate.
    fn columns(&self) -> usize {
        self.table.shape().columns()
    }
}

/// The positions of queries and keys in a layer.
#[derive(Clone, Debug)]
pub struct RotaryPositions {
    /// The angles; `None` for a layer without positions.
    pub table: Option<RotaryTable>,
    /// A table that rotates nothing, which norms of heads need where heads do not rotate as a whole.
    pub still: Option<RotaryTable>,
}

/// The layer that computes queries, keys and values.
#[derive(Debug)]
pub enum QkvLayer {
    /// One linear layer.
    Linear(Box<Linear>),
    /// Layers that expand latents.
    Latents(Box<LatentQkv>),
}

impl QkvLayer {
    fn forward(&self, tape: &Tape, input: QkvInput) -> Result<Var> {
        match (self, input) {
            (QkvLayer::Latents(layer), input) => layer.forward(tape, input),
            (QkvLayer::Linear(layer), QkvInput::One(x)) => layer.forward(tape, x),
            (QkvLayer::Linear(_), QkvInput::Parts(_)) => {
                Err(NnError::Sizes("a layer without latents has no parts of them".to_owned()))
            }
        }
    }

    fn measures(&self) -> bool {
        matches!(self, QkvLayer::Linear(layer) if layer.measures())
    }
}

/// Queries, keys and values by one linear layer or from latents; optional normalisation and rotation of
/// queries and keys; attention over each head; and an output projection.
#[derive(Debug)]
pub struct RotaryAttention {
    qkv: QkvLayer,
    norm: Option<QkNorm>,
    projection: Linear,
    settings: Settings,
    positions: RotaryPositions,
    dropout: Dropout,
    sinks: Option<Weight>,
}

impl RotaryAttention {
    /// Returns the layer. `qkv` gives the columns that the heads state, and `projection` takes `heads.query ·
    /// heads.value_width`.
    pub fn new(
        qkv: QkvLayer,
        norm: Option<QkNorm>,
        projection: Linear,
        settings: impl Into<Settings>,
        positions: RotaryPositions,
    ) -> Self {
        let settings = settings.into();
        RotaryAttention { qkv, norm, projection, settings, positions, dropout: Dropout::none(), sinks: None }
    }

    /// Returns the same layer with dropout of attention weights in training.
    #[must_use]
    pub fn dropping(self, dropout: Dropout) -> Self {
        RotaryAttention { dropout, ..self }
    }

    /// Returns the same layer with a sink for every query head, `[heads.query]`.
    #[must_use]
    pub fn with_sinks(self, sinks: Option<Weight>) -> Self {
        RotaryAttention { sinks, ..self }
    }

    /// Queries, keys and values, with their positions.
    fn qkv(&self, tape: &Tape, input: QkvInput) -> Result<Var> {
        let qkv = self.qkv.forward(tape, input)?;
        within(tape, "rotary", || self.positioned(tape, qkv))
    }

    /// Normalises queries and keys and rotates them to their positions.
    fn positioned(&self, tape: &Tape, qkv: Var) -> Result<Var> {
        let heads = self.settings.heads;
        let RotaryPositions { table, still } = &self.positions;
        let Some(QkNorm { weights, epsilon, span, .. }) = &self.norm else {
            return self.rotated(tape, qkv);
        };
        if *span == QkNormSpan::All {
            let qkv = ops::row_qk_norm(tape, qkv, heads, weights, *epsilon)?;
            return self.rotated(tape, qkv);
        }
        match (table.as_ref().filter(|table| table.columns() == heads.width), still) {
            (Some(table), _) => {
                Ok(ops::qk_norm(tape, qkv, heads, weights, &self.rotary(tape, table), *epsilon)?)
            }
            (None, Some(still)) => {
                let rotary = self.rotary(tape, still);
                let qkv = ops::qk_norm(tape, qkv, heads, weights, &rotary, *epsilon)?;
                self.rotated(tape, qkv)
            }
            (None, None) => {
                Err(NnError::Sizes("norms of heads that do not rotate need a table that does not".to_owned()))
            }
        }
    }

    /// The norm over all heads, if the layer has one.
    fn norm_of_all(&self) -> Option<&QkNorm> {
        self.norm.as_ref().filter(|norm| norm.span == QkNormSpan::All)
    }

    /// Normalises queries and keys of the lanes that are here by a norm over the heads of all lanes.
    fn normalise_lanes(lanes: &[Self], norm: &QkNorm, tape: &Tape, qkv: Vec<Var>) -> Result<Vec<Var>> {
        let weights = lanes.iter().filter_map(|lane| lane.norm.as_ref().map(|norm| norm.weights.clone()));
        let heads = lanes.first().map_or(Heads::multi(1, 1), |lane| lane.settings.heads);
        within(tape, "rotary", || {
            let (weights, QkNorm { columns, epsilon, .. }) = (weights.collect(), norm);
            Ok(ops::divided_qk_norm(tape, qkv, heads, weights, *columns, *epsilon)?)
        })
    }

    fn rotated(&self, tape: &Tape, qkv: Var) -> Result<Var> {
        let Some(table) = &self.positions.table else { return Ok(qkv) };
        let heads = self.settings.heads.query + self.settings.heads.key_value;
        Ok(ops::rotary(tape, qkv, heads, &self.rotary(tape, table))?)
    }

    fn rotary(&self, tape: &Tape, table: &RotaryTable) -> ops::Rotary {
        ops::Rotary {
            table: table.table.clone(),
            head_width: Some(self.settings.heads.width),
            documents: tape.pass().documents.clone(),
            measures: self.qkv.measures(),
        }
    }
}

impl Layer for RotaryAttention {
    type Stream = Var;

    /// Maps `[batch, time, width]` to the same shape.
    ///
    /// # Errors
    /// Operands of a wrong shape, out of memory.
    fn forward(&self, tape: &Tape, x: Var) -> Result<Var> {
        self.forward_input(tape, QkvInput::One(x))
    }

    fn forward_pieces(&self, tape: &Tape, x: Vec<Var>) -> Result<Vec<Var>> {
        self.forward_inputs(tape, x.into_iter().map(QkvInput::One).collect())
    }
}

impl DividedLayer for RotaryAttention {
    fn forward_lanes(lanes: &[Self], tape: &Tape, x: Vec<Var>) -> Result<Vec<Var>> {
        let is_latent = |lane: &Self| matches!(lane.qkv, QkvLayer::Latents(_));
        if tape.pass().cache.is_some() && lanes.iter().any(is_latent) {
            return divided::each_lane(lanes, x, |lane, x| lane.forward(tape, x));
        }
        let qkv = match lanes.first().and_then(Self::norm_of_all) {
            None => divided::each_lane(lanes, x, |lane, x| lane.qkv(tape, QkvInput::One(x)))?,
            Some(norm) => {
                let qkv = divided::each_lane(lanes, x, |lane, x| lane.qkv.forward(tape, QkvInput::One(x)))?;
                let qkv = Self::normalise_lanes(lanes, norm, tape, qkv)?;
                let rotated = |lane: &Self, qkv| within(tape, "rotary", || lane.rotated(tape, qkv));
                divided::each_lane(lanes, qkv, rotated)?
            }
        };
        Self::attend_lanes(lanes, tape, qkv)
    }

    fn forward_lanes_of_pieces(lanes: &[Self], tape: &Tape, x: Vec<Vec<Var>>) -> Result<Vec<Vec<Var>>> {
        let Some(norm) = lanes.first().and_then(Self::norm_of_all) else {
            return divided::each_lane(lanes, x, |lane, x| lane.forward_pieces(tape, x));
        };
        let forward = |lane: &Self, x| lane.qkv.forward(tape, QkvInput::One(x));
        let qkv = divided::each_lane(lanes, x, |lane, x| each_piece(tape, x, |x| forward(lane, x)))?;
        let qkv =
            each_piece(tape, divided::exchanged(qkv), |qkv| Self::normalise_lanes(lanes, norm, tape, qkv))?;
        divided::each_lane(lanes, divided::exchanged(qkv), |lane, qkv| {
            let rotated = |qkv| within(tape, "rotary", || lane.rotated(tape, qkv));
            let qkv = each_piece(tape, qkv, rotated)?;
            lane.attend_pieces(tape, qkv)
        })
    }
}

impl RotaryAttention {
    /// Maps the input of queries, keys and values to the layer's output.
    ///
    /// # Errors
    /// As [`Layer::forward`].
    pub(super) fn forward_input(&self, tape: &Tape, input: QkvInput) -> Result<Var> {
        if let (QkvLayer::Latents(layer), true) = (&self.qkv, tape.pass().cache.is_some()) {
            let rotary = self.positions.table.as_ref().map(|table| self.rotary(tape, table));
            let others = (rotary.as_ref(), self.sinks.as_ref());
            let mixed = layer.attend_cached(tape, input, self.settings, others)?;
            return self.projection.forward(tape, mixed);
        }
        if let Some(table) = self.positions.table.as_ref().filter(|_| self.rotates_in_attention(tape)) {
            let qkv = self.qkv.forward(tape, input)?;
            let (rotary, sinks) = (self.rotary(tape, table), self.sinks.as_ref());
            let mixed = within(tape, "attention", || {
                Ok(ops::rotated_attention(tape, qkv, self.settings, &rotary, sinks)?)
            })?;
            return self.projection.forward(tape, mixed);
        }
        let qkv = self.qkv(tape, input)?;
        self.attend(tape, qkv)
    }

    /// Returns whether attention rotates queries and keys itself: it does for the next tokens of sequences,
    /// whose kernels are too short to be launched for each part.
    fn rotates_in_attention(&self, tape: &Tape) -> bool {
        tape.pass().extends_cache() && self.norm.is_none() && !self.qkv.measures()
    }

    /// [`RotaryAttention::forward_input`] of the pieces of sequences that are here.
    ///
    /// # Errors
    /// As [`Layer::forward`].
    pub(super) fn forward_inputs(&self, tape: &Tape, inputs: Vec<QkvInput>) -> Result<Vec<Var>> {
        let qkv = each_piece(tape, inputs, |input| self.qkv(tape, input))?;
        self.attend_pieces(tape, qkv)
    }

    /// Maps queries, keys and values with their positions to the layer's output.
    fn attend(&self, tape: &Tape, qkv: Var) -> Result<Var> {
        let mixed = within(tape, "attention", || {
            let measures = AttentionMeasures { output: self.projection.measures(), gradients: false };
            let (sinks, dropout) = (self.sinks.as_ref(), self.dropout.site());
            let qkv = Qkv::Packed(qkv);
            Ok(ops::attention_with_sinks(tape, qkv, self.settings, sinks, dropout, measures)?)
        })?;
        self.projection.forward(tape, mixed)
    }

    /// [`RotaryAttention::attend`] of the lanes that are here.
    fn attend_lanes(lanes: &[Self], tape: &Tape, qkv: Vec<Var>) -> Result<Vec<Var>> {
        let is_plain = |lane: &Self| {
            lane.sinks.is_none() && lane.dropout.site().is_none() && !lane.projection.measures()
        };
        let Some(first) = lanes.first().filter(|_| lanes.iter().all(is_plain)) else {
            return divided::each_lane(lanes, qkv, |lane, qkv| lane.attend(tape, qkv));
        };
        let mixed = within(tape, "attention", || Ok(ops::lane_attention(tape, qkv, first.settings)?))?;
        divided::each_lane(lanes, mixed, |lane, mixed| lane.projection.forward(tape, mixed))
    }

    /// [`RotaryAttention::attend`] of the pieces of sequences that are here.
    fn attend_pieces(&self, tape: &Tape, qkv: Vec<Var>) -> Result<Vec<Var>> {
        let (settings, sinks, dropout) = (self.settings, self.sinks.as_ref(), self.dropout.site());
        let mixed =
            within(tape, "attention", || Ok(ops::piece_attention(tape, qkv, settings, sinks, dropout)?))?;
        each_piece(tape, mixed, |mixed| self.projection.forward(tape, mixed))
    }
}
