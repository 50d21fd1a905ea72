//! Causal self-attention with rotary position embeddings.

use autograd::ops::{AttentionMeasures, LaneShare, QkNormWeights};
use autograd::{Tape, Var, ops};
use device::{Backend, Category, Device, Request};
use tensor::ops::attention::{Heads, Qkv};
use tensor::ops::rotary::Frequencies;
use tensor::{DType, Tensor};

use super::{Dropout, Layer, Linear, within};
use crate::error::Result;
use crate::init::Init;
use crate::lanes::Lanes;
use crate::parameters::Parameters;

/// Cosines and sines of the angles of all positions, shared by the layers of a stage: `[context, head width]`
/// f32. It is not a buffer of the model's state, because the sizes determine it.
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
        let _scope = device.module("rotary");
        let request = Request::new(Category::Buffer, "rotary");
        let table = Tensor::empty(device, [context, frequencies.width], DType::F32, request)?;
        if device.backend() != Backend::Meta {
            table.set(&frequencies.table(context))?;
        }
        Ok(RotaryTable { table })
    }
}

/// RMS norm of every query head and of every key head.
#[derive(Clone, Debug)]
pub struct QkNorm {
    weights: QkNormWeights,
    epsilon: f32,
}

impl QkNorm {
    /// Registers `{prefix}.q_norm.weight` and `{prefix}.k_norm.weight` (ones), `[width]` each.
    ///
    /// # Errors
    /// Out of memory, a name that exists.
    pub fn new(parameters: &mut Parameters, prefix: &str, width: usize, epsilon: f32) -> Result<Self> {
        let mut weight =
            |part: &str| parameters.create(&format!("{prefix}.{part}.weight"), [width], Init::Constant(1.0));
        let weights = QkNormWeights { query: weight("q_norm")?, key: weight("k_norm")?, share: None };
        Ok(QkNorm { weights, epsilon })
    }

    /// Returns the norms of each lane, which share the weights; the norm itself if layers are not divided.
    pub(super) fn in_lanes(self, lanes: Lanes) -> Vec<Self> {
        if !lanes.is_divided() {
            return vec![self];
        }
        let of_lane = |share| {
            let weights = QkNormWeights { share: Some(share), ..self.weights.clone() };
            QkNorm { weights, epsilon: self.epsilon }
        };
        LaneShare::of_lanes(lanes.here).into_iter().map(of_lane).collect()
    }
}

/// Queries, keys and values by one linear layer; optional normalisation and rotation of queries and keys;
/// attention over each head; and an output projection.
#[derive(Debug)]
pub struct RotaryAttention {
    qkv: Linear,
    norm: Option<QkNorm>,
    projection: Linear,
    heads: Heads,
    table: RotaryTable,
    dropout: Dropout,
}

impl RotaryAttention {
    /// Returns the layer. `qkv` gives the columns that `heads` states, and `projection` takes `heads.query ·
    /// heads.width`.
    pub fn new(
        qkv: Linear,
        norm: Option<QkNorm>,
        projection: Linear,
        heads: Heads,
        table: RotaryTable,
    ) -> Self {
        RotaryAttention { qkv, norm, projection, heads, table, dropout: Dropout::none() }
    }

    /// Returns the same layer with dropout of attention weights in training.
    #[must_use]
    pub fn dropping(self, dropout: Dropout) -> Self {
        RotaryAttention { dropout, ..self }
    }
}

impl Layer for RotaryAttention {
    type Stream = Var;

    /// Maps `[batch, time, width]` to the same shape.
    ///
    /// # Errors
    /// Operands of a wrong shape, out of memory.
    fn forward(&self, tape: &Tape, x: Var) -> Result<Var> {
        let qkv = self.qkv.forward(tape, x)?;
        let rotary = ops::Rotary {
            table: self.table.table.clone(),
            documents: tape.pass().documents.clone(),
            measures: self.qkv.measures(),
        };
        let qkv = within(tape, "rotary", || match &self.norm {
            Some(QkNorm { weights, epsilon }) => {
                Ok(ops::qk_norm(tape, qkv, self.heads, weights, &rotary, *epsilon)?)
            }
            None => Ok(ops::rotary(tape, qkv, self.heads.query + self.heads.key_value, &rotary)?),
        })?;
        let mixed = within(tape, "attention", || {
            let measures = AttentionMeasures { output: self.projection.measures(), gradients: false };
            Ok(ops::attention(tape, Qkv::Packed(qkv), self.heads, self.dropout.site(), measures)?)
        })?;
        self.projection.forward(tape, mixed)
    }
}
