//! Causal self-attention with rotary position embeddings.

use autograd::ops::{AttentionMeasures, LaneShare, QkNormWeights};
use autograd::{Tape, Var, Weight, ops};
use device::{Backend, Category, Device, Request};
use tensor::ops::attention::{Heads, Qkv, Settings};
use tensor::ops::rotary::Frequencies;
use tensor::{DType, Tensor};

use super::stack::each_piece;
use super::{Dropout, Layer, Linear, within};
use crate::error::{NnError, Result};
use crate::init::Init;
use crate::lanes::Lanes;
use crate::parameters::Parameters;

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

/// The queries and keys that one mean square covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNormSpan {
    /// Each head.
    Head,
    /// All query heads of a position, and all its key heads.
    All,
}

impl QkNormSpan {
    /// Returns its name in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            QkNormSpan::Head => "head",
            QkNormSpan::All => "all",
        }
    }
}

/// RMS norm of queries and of keys.
#[derive(Clone, Debug)]
pub struct QkNorm {
    weights: QkNormWeights,
    epsilon: f32,
    span: QkNormSpan,
}

impl QkNorm {
    /// Registers `{prefix}.q_norm.weight` and `{prefix}.k_norm.weight`, `[heads.width]` each, or the columns
    /// of all heads: the norms' weights, at first 1, less `offset`.
    ///
    /// # Errors
    /// Out of memory, a name that exists.
    pub fn new(
        parameters: &mut Parameters,
        prefix: &str,
        heads: Heads,
        span: QkNormSpan,
        [epsilon, offset]: [f32; 2],
    ) -> Result<Self> {
        let mut weight = |part: &str, columns: usize| {
            let name = format!("{prefix}.{part}.weight");
            let weight = parameters.create(&name, [columns], Init::Constant(1.0 - offset))?;
            Ok::<_, NnError>(if offset == 0.0 { weight } else { weight.plus(offset) })
        };
        let [query, key] = match span {
            QkNormSpan::Head => [heads.width; 2],
            QkNormSpan::All => [heads.query_columns(), heads.key_value_columns()],
        };
        let (query, key) = (weight("q_norm", query)?, weight("k_norm", key)?);
        Ok(QkNorm { weights: QkNormWeights { query, key, share: None }, epsilon, span })
    }

    /// Returns the norms of each lane, which share the weights.
    pub(super) fn in_lanes(self, lanes: Lanes) -> Vec<Self> {
        let of_lane = |share| {
            let weights = QkNormWeights { share: Some(share), ..self.weights.clone() };
            QkNorm { weights, ..self.clone() }
        };
        LaneShare::of_lanes(lanes.here).into_iter().map(of_lane).collect()
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

/// Queries, keys and values by one linear layer; optional normalisation and rotation of queries and keys;
/// attention over each head; and an output projection.
#[derive(Debug)]
pub struct RotaryAttention {
    qkv: Linear,
    norm: Option<QkNorm>,
    projection: Linear,
    settings: Settings,
    positions: RotaryPositions,
    dropout: Dropout,
    sinks: Option<Weight>,
}

impl RotaryAttention {
    /// Returns the layer. `qkv` gives the columns that the heads state, and `projection` takes `heads.query ·
    /// heads.width`.
    pub fn new(
        qkv: Linear,
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
    fn qkv(&self, tape: &Tape, x: Var) -> Result<Var> {
        let qkv = self.qkv.forward(tape, x)?;
        within(tape, "rotary", || self.positioned(tape, qkv))
    }

    /// Normalises queries and keys and rotates them to their positions.
    fn positioned(&self, tape: &Tape, qkv: Var) -> Result<Var> {
        let heads = self.settings.heads;
        let RotaryPositions { table, still } = &self.positions;
        let Some(QkNorm { weights, epsilon, span }) = &self.norm else {
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
        let qkv = self.qkv(tape, x)?;
        let mixed = within(tape, "attention", || {
            let measures = AttentionMeasures { output: self.projection.measures(), gradients: false };
            let (sinks, dropout) = (self.sinks.as_ref(), self.dropout.site());
            let qkv = Qkv::Packed(qkv);
            Ok(ops::attention_with_sinks(tape, qkv, self.settings, sinks, dropout, measures)?)
        })?;
        self.projection.forward(tape, mixed)
    }

    fn forward_pieces(&self, tape: &Tape, x: Vec<Var>) -> Result<Vec<Var>> {
        if self.sinks.is_some() {
            return Err(NnError::Sizes("model.attention_sinks needs sequences that are whole".to_owned()));
        }
        let qkv = each_piece(tape, x, |x| self.qkv(tape, x))?;
        let (settings, dropout) = (self.settings, self.dropout.site());
        let mixed = within(tape, "attention", || Ok(ops::piece_attention(tape, qkv, settings, dropout)?))?;
        each_piece(tape, mixed, |mixed| self.projection.forward(tape, mixed))
    }
}
