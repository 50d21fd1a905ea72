//! Operands, results and sizes of the gated delta rule.

use device::{Category, Device, Request};

use crate::ops::check;
use crate::{DType, Result, Tensor};

/// Tokens of a chunk.
pub const CHUNK: usize = 64;

/// Numbers and widths of heads: consecutive value heads share a query and a key head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaHeads {
    /// Query heads, and key heads.
    pub key: usize,
    /// Value heads, a multiple of the key heads. Each has a state, a decay and a rate.
    pub value: usize,
    /// Columns of a query or key.
    pub width: usize,
    /// Columns of a value.
    pub value_width: usize,
}

impl DeltaHeads {
    /// Returns the heads of one of `parts` equal parts.
    #[must_use]
    pub fn divided(self, parts: usize) -> Self {
        DeltaHeads { key: self.key / parts, value: self.value / parts, ..self }
    }

    /// Returns the columns of all queries, of all keys, and of all values.
    #[must_use]
    pub fn groups_of_columns(&self) -> [usize; 3] {
        [self.key * self.width, self.key * self.width, self.output_columns()]
    }

    /// Returns the columns of queries, keys and values together.
    #[must_use]
    pub fn packed_columns(&self) -> usize {
        2 * self.key * self.width + self.output_columns()
    }

    /// Returns the number of columns of the values of all heads, which is also the output's.
    #[must_use]
    pub fn output_columns(&self) -> usize {
        self.value * self.value_width
    }

    /// Returns the number of values of the states of one sequence.
    #[must_use]
    pub fn state_elements(&self) -> usize {
        self.value * self.width * self.value_width
    }
}

impl DeltaHeads {
    /// Allocates the states of `slots` sequences, `[slots, value heads, width, value width]` f32.
    pub fn allocate(&self, device: &Device, slots: usize) -> Result<Tensor> {
        let request = Request::new(Category::Buffer, "gated_delta_rule.states");
        Tensor::empty(device, [slots, self.value, self.width, self.value_width], DType::F32, request)
    }
}

/// Heads of the rule, and the form of its decays.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeltaSettings {
    /// Numbers and widths of the heads.
    pub heads: DeltaHeads,
    /// Whether each channel of a key has its own decay, as in Kimi Delta Attention. Otherwise a head has one.
    pub by_channel: bool,
    /// Number added to the square of the norms of queries and keys.
    pub epsilon: f32,
}

impl DeltaSettings {
    /// Returns the number of decays per token.
    #[must_use]
    pub fn decays(&self) -> usize {
        self.heads.value * self.channels()
    }

    /// Returns the number of decays per value head.
    pub(super) fn channels(&self) -> usize {
        if self.by_channel { self.heads.width } else { 1 }
    }
}

/// Operands of the rule.
#[derive(Clone, Copy, Debug)]
pub struct Operands<'a> {
    /// All queries, all keys and all values, `[batch, time, packed columns]`, f32 or a half type.
    pub qkv: &'a Tensor,
    /// Logarithm of the decays, `[batch, time, decays]` f32, at most 0; by channel, the channels of a head
    /// follow each other.
    pub decay: &'a Tensor,
    /// Rates, `[batch, time, value heads]` f32, from 0 to 1; above 1 the state's eigenvalues may be negative.
    pub rate: &'a Tensor,
    /// Position at which each token's document begins, `[batch, time]` u32, never decreasing along a
    /// sequence; negative (modulo 2³²) if it begins before the sequence. `None`: every sequence is one
    /// document, which begins before it if there are states.
    pub documents: Option<&'a Tensor>,
    /// States before the sequences, `[batch, value heads, width, value width]` f32, of the documents that
    /// begin before them. `None`: zero.
    pub state: Option<&'a Tensor>,
}

/// Results of the forward pass.
#[derive(Clone, Debug)]
pub struct Output {
    /// The output, `[batch, time, value heads · value width]`.
    pub output: Tensor,
    /// The states after the sequences, shaped as the first states, if asked for.
    pub state: Option<Tensor>,
}

/// Gradients of the operands, in their shapes and types.
#[derive(Clone, Debug)]
pub struct Gradients {
    /// Gradient of queries, keys and values.
    pub qkv: Tensor,
    /// Gradient of the logarithm of the decays.
    pub decay: Tensor,
    /// Gradient of the rates.
    pub rate: Tensor,
    /// Gradient of the first states, if there are any.
    pub state: Option<Tensor>,
}

/// Sizes of a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Geometry {
    pub(super) batch: usize,
    pub(super) time: usize,
    pub(super) settings: DeltaSettings,
}

impl Geometry {
    /// Checks the operands of a call.
    pub(super) fn check(
        operator: &'static str,
        operands: &Operands<'_>,
        settings: DeltaSettings,
    ) -> Result<Self> {
        let Operands { qkv, decay, rate, documents, state } = *operands;
        let DeltaHeads { key, value, width, value_width } = settings.heads;
        check::computed(operator, &[("qkv", qkv)])?;
        check::rank(operator, "qkv", qkv, 3)?;
        if key == 0 || value == 0 || !value.is_multiple_of(key) || width == 0 || value_width == 0 {
            let expected = format!("{value} value heads that divide over {key} key heads");
            return Err(check::wrong(operator, "qkv", qkv, expected));
        }
        let [batch, time] = [qkv.shape().dims()[0], qkv.shape().dims()[1]];
        check::shape(operator, "qkv", qkv, [batch, time, settings.heads.packed_columns()])?;
        check::f32s(operator, &[("decay", decay), ("rate", rate)])?;
        check::shape(operator, "decay", decay, [batch, time, settings.decays()])?;
        check::shape(operator, "rate", rate, [batch, time, value])?;
        if let Some(documents) = documents {
            check::dtype(operator, "documents", documents, DType::U32)?;
            check::shape(operator, "documents", documents, [batch, time])?;
        }
        let geometry = Geometry { batch, time, settings };
        if let Some(state) = state {
            check::f32s(operator, &[("state", state)])?;
            check::shape(operator, "state", state, geometry.state_shape())?;
        }
        Ok(geometry)
    }

    pub(super) fn output_shape(&self) -> [usize; 3] {
        [self.batch, self.time, self.settings.heads.output_columns()]
    }

    pub(super) fn state_shape(&self) -> [usize; 4] {
        let DeltaHeads { value, width, value_width, .. } = self.settings.heads;
        [self.batch, value, width, value_width]
    }

    pub(super) fn chunks(&self) -> usize {
        self.time.div_ceil(CHUNK)
    }

    /// Value heads that share a key head.
    pub(super) fn group(&self) -> usize {
        self.settings.heads.value / self.settings.heads.key
    }

    /// Returns the FLOPs of the forward pass: three products with the state, and those within chunks.
    pub(super) fn flops(&self) -> u64 {
        let DeltaHeads { value, width, value_width, .. } = self.settings.heads;
        let within = CHUNK.min(self.time) * (width + value_width);
        (2 * self.batch * self.time * value) as u64 * (3 * width * value_width + within) as u64
    }
}
