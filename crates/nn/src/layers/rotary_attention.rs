//! Causal self-attention with rotary position embeddings.

use autograd::ops::AttentionMeasures;
use autograd::{Tape, Var, Weight, map, ops};
use device::{Backend, Category, Device, Request};
use tensor::ops::attention::{Heads, Qkv, Settings};
use tensor::ops::rotary::Frequencies;
use tensor::{DType, Tensor};

use super::edges::ShardEdges;
use super::latents::Latents;
use super::shared_key_values::norm_queries;
use super::value_options::ValueOptions;
use super::{Dropout, KeyValueRole, LatentQkv, Layer, Linear, QkNorm, QkNormSpan, SharedKeyValues, within};
use crate::error::{NnError, Result};

/// Cosines and sines of all positions, `[context, columns]` f32, for the first columns of a head; shared by
/// the layers of a stage. Not part of the model's state, because the sizes determine it.
#[derive(Clone, Debug)]
pub struct RotaryTable {
    table: Tensor,
}

impl RotaryTable {
    /// Computes the table of positions 0 to `context`. Only the first `pairs` pairs of columns rotate; with
    /// `reversed`, in the opposite direction.
    pub fn new(
        device: &Device,
        frequencies: Frequencies,
        context: usize,
        (pairs, reversed): (usize, bool),
    ) -> Result<Self> {
        let width = frequencies.width;
        let half = width / 2;
        let value = |(index, value): (usize, f32)| match index % width {
            column if column % half >= pairs => f32::from(u8::from(column < half)),
            column if reversed && column >= half => -value,
            _ => value,
        };
        let is_plain = pairs >= half && !reversed;
        Self::with(device, [context, width], || match is_plain {
            true => frequencies.table(context),
            false => frequencies.table(context).into_iter().enumerate().map(value).collect(),
        })
    }

    /// Creates a table that rotates nothing, for heads of `width` columns.
    pub fn still(device: &Device, width: usize, context: usize) -> Result<Self> {
        Self::growing(device, width, context, |_| 1.0)
    }

    /// Creates a table that rotates nothing and multiplies heads of `width` columns by `factor(position)`.
    pub fn growing(
        device: &Device,
        width: usize,
        context: usize,
        factor: impl Fn(usize) -> f32,
    ) -> Result<Self> {
        let row = |position| {
            let cosine = factor(position);
            (0..width).map(move |column| if column < width / 2 { cosine } else { 0.0 })
        };
        Self::with(device, [context, width], || (0..context).flat_map(row).collect())
    }

    fn with(device: &Device, shape: [usize; 2], values: impl FnOnce() -> Vec<f32>) -> Result<Self> {
        let _scope = device.module("rotary");
        let table = Tensor::empty(device, shape, DType::F32, Request::new(Category::Buffer, "rotary"))?;
        if device.backend() != Backend::Meta {
            table.set(&values())?;
        }
        Ok(RotaryTable { table })
    }

    /// Number of rotated columns per head.
    fn columns(&self) -> usize {
        self.table.shape().columns()
    }
}

/// Rotary tables of a layer.
#[derive(Clone, Debug, Default)]
pub struct RotaryPositions {
    /// The table of angles; `None` for a layer without positions.
    pub table: Option<RotaryTable>,
    /// A table that rotates nothing, needed by per-head norms that cannot rotate heads themselves: if heads
    /// rotate in part, in neighbouring columns, before the norms, or not at all.
    pub still: Option<RotaryTable>,
    /// Whether neighbouring columns rotate together, instead of columns of both halves of a head.
    pub interleaved: bool,
    /// A table that multiplies queries by a factor of their position, after all else.
    pub growth: Option<RotaryTable>,
    /// Keys and values that the layer shares with others, and its role.
    pub shared: Option<(SharedKeyValues, KeyValueRole)>,
}

/// The layer that computes queries, keys and values.
#[derive(Debug)]
pub enum QkvLayer {
    /// One linear layer.
    Linear(Box<Linear>),
    /// Latents, and the layers that expand them.
    Latents(Box<(Latents, LatentQkv)>),
}

impl QkvLayer {
    fn measures(&self) -> bool {
        matches!(self, QkvLayer::Linear(layer) if layer.measures())
    }

    fn edges(&self) -> ShardEdges {
        match self {
            QkvLayer::Linear(layer) => layer.edges(),
            QkvLayer::Latents(layers) => layers.1.edges(),
        }
    }
}

/// Rotary self-attention: queries, keys and values from a linear layer or latents, optional norms and
/// rotation of queries and keys, attention per head, and an output projection.
#[derive(Debug)]
pub struct RotaryAttention {
    qkv: QkvLayer,
    norm: Option<QkNorm>,
    projection: Linear,
    settings: Settings,
    positions: RotaryPositions,
    dropout: Dropout,
    sinks: Vec<Weight>,
    /// Whether the output is multiplied by the sigmoid of gates, whose rows follow the query rows of each
    /// head.
    is_gated: bool,
    values: ValueOptions,
}

impl RotaryAttention {
    /// Creates the layer. `qkv` must output the columns described by the heads, and `projection` takes
    /// `heads.query · heads.value_width`. Shards of both have equal parts of the heads.
    pub fn new(
        qkv: QkvLayer,
        norm: Option<QkNorm>,
        projection: Linear,
        settings: impl Into<Settings>,
        positions: RotaryPositions,
    ) -> Self {
        let settings = settings.into();
        let sinks = Vec::new();
        let dropout = Dropout::none();
        let values = ValueOptions::default();
        let is_gated = false;
        RotaryAttention { qkv, norm, projection, settings, positions, dropout, sinks, is_gated, values }
    }

    /// Adds dropout of attention weights in training.
    #[must_use]
    pub fn dropping(self, dropout: Dropout) -> Self {
        RotaryAttention { dropout, ..self }
    }

    /// Adds an attention sink for every query head; `sinks` has one weight per local shard.
    #[must_use]
    pub fn with_sinks(self, sinks: Vec<Weight>) -> Self {
        RotaryAttention { sinks, ..self }
    }

    /// Sets whether the output is multiplied by sigmoid gates. The rows of a head's gates then follow its
    /// query rows in the projection.
    #[must_use]
    pub fn gated(self, is_gated: bool) -> Self {
        RotaryAttention { is_gated, ..self }
    }

    /// Sets how values are computed.
    #[must_use]
    pub(super) fn with_values(self, values: ValueOptions) -> Self {
        RotaryAttention { values, ..self }
    }

    /// Returns whether one norm covers all heads of a row.
    fn norms_rows(&self) -> bool {
        self.norm.as_ref().is_some_and(|norm| norm.span == QkNormSpan::All)
    }

    /// Computes queries, keys and values block by block with `forward`, normalises queries and keys, and
    /// rotates them unless attention does that itself.
    fn qkv<const N: usize>(
        &self,
        tape: &Tape,
        (edges, inputs): (ShardEdges, [Var; N]),
        forward: impl Fn(usize, [Var; N]) -> Result<Var>,
    ) -> Result<Var> {
        let heads = self.settings.heads.divided(edges.shards());
        let norms_shards = self.norms_rows() && edges.is_sharded();
        let rotated = |qkv_blc| {
            within(tape, "rotary", || {
                let qkv_blc = if norms_shards { qkv_blc } else { self.row_norm(tape, qkv_blc, heads)? };
                self.rotated(tape, qkv_blc, heads)
            })
        };
        let is_later = norms_shards || self.rotates_in_attention(tape);
        let qkv_blc = map(tape, inputs, |block, inputs| {
            let qkv_blc = forward(block.shard, inputs)?;
            if let Some((shared, KeyValueRole::Reader { is_last })) = &self.positions.shared {
                let queries_blc = within(tape, "rotary", || self.queries(tape, qkv_blc, heads))?;
                return within(tape, "values", || shared.append(tape, block, queries_blc, *is_last));
            }
            let qkv_blc = within(tape, "values", || self.values.forward(tape, qkv_blc, heads))?;
            let qkv_blc = if is_later { qkv_blc } else { rotated(qkv_blc)? };
            if let Some((shared, KeyValueRole::Source)) = &self.positions.shared {
                within(tape, "values", || shared.keep(tape, block, &qkv_blc, heads))?;
            }
            Ok::<_, NnError>(qkv_blc)
        })?;
        let qkv_blc = edges.columns(qkv_blc);
        if !norms_shards {
            return Ok(qkv_blc);
        }
        let qkv_blc = within(tape, "rotary", || self.row_norm(tape, qkv_blc, heads))?;
        map(tape, [qkv_blc], |_, [qkv_blc]| rotated(qkv_blc))
    }

    /// Applies the norm over all heads of a row, if the layer has one.
    fn row_norm(&self, tape: &Tape, qkv_blc: Var, heads: Heads) -> Result<Var> {
        match self.norm.as_ref().filter(|_| self.norms_rows()) {
            Some(QkNorm { weights, epsilon, columns, .. }) => {
                Ok(ops::row_qk_norm(tape, qkv_blc, heads, weights, *columns, *epsilon)?)
            }
            None => Ok(qkv_blc),
        }
    }

    /// Normalises and rotates the queries of one block of a layer without keys and values of its own.
    fn queries(&self, tape: &Tape, mut queries_blc: Var, heads: Heads) -> Result<Var> {
        if let Some(norm) = &self.values.query_norm {
            queries_blc = norm_queries(tape, queries_blc, heads, norm)?;
        }
        if let Some(table) = &self.positions.table {
            let rotary = ops::Rotary { measures: false, ..self.rotary(tape, table) };
            queries_blc = ops::rotary(tape, queries_blc, heads.query, &rotary)?;
        }
        self.grown(tape, queries_blc, heads)
    }

    /// Normalises and rotates the heads of a block, and multiplies queries by the factor of their position.
    fn rotated(&self, tape: &Tape, qkv_blc: Var, heads: Heads) -> Result<Var> {
        let qkv_blc = self.normed_and_rotated(tape, qkv_blc, heads)?;
        self.grown(tape, qkv_blc, heads)
    }

    /// Multiplies queries by the factor of their position, if they grow.
    fn grown(&self, tape: &Tape, x_blc: Var, heads: Heads) -> Result<Var> {
        let Some(growth) = &self.positions.growth else { return Ok(x_blc) };
        // The gradient passes the rotation after this operator, which measures it.
        let rotary = ops::Rotary { interleaved: false, measures: false, ..self.rotary(tape, growth) };
        Ok(ops::rotary(tape, x_blc, heads.query, &rotary)?)
    }

    /// Normalises each head of a block, if the layer has such a norm, before or after rotating it.
    fn normed_and_rotated(&self, tape: &Tape, qkv_blc: Var, heads: Heads) -> Result<Var> {
        let RotaryPositions { table, still, interleaved, .. } = &self.positions;
        let rotated = |qkv_blc| match table {
            Some(table) => {
                Ok(ops::rotary(tape, qkv_blc, heads.query + heads.key_value, &self.rotary(tape, table))?)
            }
            None => Ok(qkv_blc),
        };
        let Some(QkNorm { weights, epsilon, span: QkNormSpan::Head, is_last, .. }) = &self.norm else {
            return rotated(qkv_blc);
        };
        let Some(weights) = weights.first() else { return rotated(qkv_blc) };
        let is_joint = |table: &&RotaryTable| table.columns() == heads.width && !interleaved && !is_last;
        match (table.as_ref().filter(is_joint), still) {
            (Some(table), _) => {
                Ok(ops::qk_norm(tape, qkv_blc, heads, weights, &self.rotary(tape, table), *epsilon)?)
            }
            (None, Some(still)) => {
                let rotary = ops::Rotary { interleaved: false, ..self.rotary(tape, still) };
                let norm = |qkv_blc| Ok(ops::qk_norm(tape, qkv_blc, heads, weights, &rotary, *epsilon)?);
                if *is_last { norm(rotated(qkv_blc)?) } else { rotated(norm(qkv_blc)?) }
            }
            (None, None) => {
                Err(NnError::Sizes("norms of heads that do not rotate need a table that does not".to_owned()))
            }
        }
    }

    fn rotary(&self, tape: &Tape, table: &RotaryTable) -> ops::Rotary {
        ops::Rotary {
            table: table.table.clone(),
            head_width: Some(self.settings.heads.width),
            documents: tape.pass().documents.clone(),
            interleaved: self.positions.interleaved,
            measures: self.qkv.measures(),
        }
    }

    /// Returns whether attention rotates queries and keys itself. It does for the next tokens of sequences,
    /// because their kernels are too short to launch separately.
    fn rotates_in_attention(&self, tape: &Tape) -> bool {
        let is_plain = self.norm.is_none() && !self.qkv.measures() && !self.qkv.edges().is_sharded();
        let RotaryPositions { table, interleaved, growth, shared, .. } = &self.positions;
        let is_plain = is_plain && self.values.is_plain() && shared.is_none() && growth.is_none();
        tape.pass().extends_cache() && is_plain && table.is_some() && !interleaved
    }

    /// Computes attention and projects the results, one shard after another unless attention computes all
    /// shards at once.
    fn attend(&self, tape: &Tape, qkv_blc: Var) -> Result<Var> {
        let measures = AttentionMeasures { output: self.projection.measures(), gradients: false };
        match ops::attends_jointly(tape, &self.sinks, self.dropout.site(), measures) {
            true => self.attend_block(tape, qkv_blc, measures),
            false => qkv_blc.each_shard(tape, |qkv_blc| self.attend_block(tape, qkv_blc, measures)),
        }
    }

    fn attend_block(&self, tape: &Tape, qkv_blc: Var, measures: AttentionMeasures) -> Result<Var> {
        let mixed_blc = within(tape, "attention", || {
            if let Some(table) = self.positions.table.as_ref().filter(|_| self.rotates_in_attention(tape)) {
                let rotary = self.rotary(tape, table);
                let sinks = self.sinks.first();
                return Ok(ops::rotated_attention(tape, qkv_blc, self.settings, &rotary, sinks)?);
            }
            let dropout = self.dropout.site();
            let qkv_blc = Qkv::Packed(qkv_blc);
            Ok(ops::attention_with_sinks(tape, qkv_blc, self.settings, &self.sinks, dropout, measures)?)
        })?;
        self.projection.forward_blocks(tape, mixed_blc)
    }

    /// Computes gated attention of one shard and projects the results. Pieces of sequences meet in attention.
    fn attend_gated(&self, tape: &Tape, layer: &Linear, x_bld: Var) -> Result<Var> {
        let heads = self.settings.heads.divided(layer.edges().shards());
        let settings = Settings { heads, ..self.settings };
        let parts = map(tape, [x_bld], |block, [x_bld]| {
            let packed_blc = layer.forward_shard(tape, block.shard, x_bld)?;
            let [qkv_blc, gates_blc] = within(tape, "gate", || separate_gates(tape, packed_blc, heads))?;
            let qkv_blc = within(tape, "rotary", || self.rotated(tape, qkv_blc, heads))?;
            Ok::<_, NnError>((qkv_blc, gates_blc))
        })?;
        let (qkv_blc, gates_blc) = parts;
        let mixed_blc = within(tape, "attention", || {
            let qkv_blc = Qkv::Packed(qkv_blc);
            let dropout = self.dropout.site();
            let measures = AttentionMeasures::default();
            Ok(ops::attention_with_sinks(tape, qkv_blc, settings, &self.sinks, dropout, measures)?)
        })?;
        map(tape, [mixed_blc, gates_blc], |block, [mixed_blc, gates_blc]| {
            let gated_blc = within(tape, "gate", || Ok(ops::sigmoid_gate(tape, mixed_blc, gates_blc)?))?;
            self.projection.forward_shard(tape, block.shard, gated_blc)
        })
    }

    /// Computes attention over latents in a pass with caches, and projects the results.
    fn attend_latents(&self, tape: &Tape, layer: &LatentQkv, parts: [Var; 3]) -> Result<Var> {
        let rotary = self.positions.table.as_ref().map(|table| self.rotary(tape, table));
        map(tape, parts, |block, parts| {
            let others = (rotary.as_ref(), self.sinks.get(block.shard));
            let mixed_blc = layer.attend_cached(tape, (block.shard, parts), self.settings, others)?;
            self.projection.forward_blocks(tape, mixed_blc)
        })
    }

    /// Applies `forward` to the shards' copies of the input: one shard after another if sequences are in
    /// pieces, unless a norm needs all shards.
    fn forward_shards(&self, tape: &Tape, x_bld: Var, forward: impl Fn(Var) -> Result<Var>) -> Result<Var> {
        match tape.pieces().is_some() && !self.norms_rows() {
            true => x_bld.each_shard(tape, forward),
            false => forward(x_bld),
        }
    }
}

impl Layer for RotaryAttention {
    type Stream = Var;

    /// Maps `[batch, time, width]` to the same shape.
    ///
    /// # Errors
    /// An operand has a wrong shape, memory is exhausted, or a collective failed.
    fn forward(&self, tape: &Tape, x_bld: Var) -> Result<Var> {
        let dtype = x_bld.tensor().dtype();
        let y_bld = match &self.qkv {
            QkvLayer::Linear(layer) if self.is_gated => {
                let x_bld = layer.enter(tape, x_bld)?;
                x_bld.each_shard(tape, |x_bld| self.attend_gated(tape, layer, x_bld))?
            }
            QkvLayer::Linear(layer) => self.forward_shards(tape, layer.enter(tape, x_bld)?, |x_bld| {
                let forward = |shard, [x_bld]: [Var; 1]| layer.forward_shard(tape, shard, x_bld);
                self.attend(tape, self.qkv(tape, (layer.edges(), [x_bld]), forward)?)
            })?,
            QkvLayer::Latents(layers) => {
                let (latents, layer) = &**layers;
                let parts = layer.enter(tape, latents.parts(tape, x_bld)?)?;
                match tape.pass().cache {
                    Some(_) => self.attend_latents(tape, layer, parts)?,
                    None => {
                        let forward = |shard, parts| layer.forward_shard(tape, shard, parts);
                        self.attend(tape, self.qkv(tape, (layer.edges(), parts), forward)?)?
                    }
                }
            }
        };
        self.projection.leave(tape, y_bld, dtype)
    }
}

/// Separates the columns of queries, keys and values from the gates, which follow each head's query.
fn separate_gates(tape: &Tape, packed_blc: Var, heads: Heads) -> Result<[Var; 2]> {
    let [batch, time] = [packed_blc.tensor().shape().dims()[0], packed_blc.tensor().shape().dims()[1]];
    let [queries, keys, values] = heads.groups_of_columns();
    let gates = heads.output_columns();
    let [both, keys_values] = two(ops::split(tape, packed_blc, 2, &[queries + gates, keys + values])?)?;
    let by_head = ops::reshape(tape, both, [batch, time, heads.query, heads.width + heads.value_width])?;
    let [queries_blhk, gates_blhk] = two(ops::split(tape, by_head, 3, &[heads.width, heads.value_width])?)?;
    let queries_blc = ops::reshape(tape, queries_blhk, [batch, time, queries])?;
    let qkv_blc = ops::concatenate(tape, &[queries_blc, keys_values], 2)?;
    Ok([qkv_blc, ops::reshape(tape, gates_blhk, [batch, time, gates])?])
}

fn two(parts: Vec<Var>) -> Result<[Var; 2]> {
    <[Var; 2]>::try_from(parts)
        .map_err(|parts| NnError::Sizes(format!("{} parts of a projection", parts.len())))
}
