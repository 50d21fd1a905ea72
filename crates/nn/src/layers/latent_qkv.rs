//! The layers that expand latents to queries, keys and values.

use autograd::ops::{LatentLayer, Rotary};
use autograd::{Tape, Var, Weight, ops};
use tensor::ops::Activation;
use tensor::ops::attention::Settings;
use tensor::ops::latent_qkv::LatentHeads;

use super::edges::ShardEdges;
use super::latents::LatentSizes;
use super::linear::LinearShard;
use super::{Linear, within};
use crate::error::{NnError, Result};
use crate::init::Init;
use crate::parameters::Parameters;

/// The dimension of columns in `[batch, time, columns]`.
const COLUMNS: usize = 2;

/// Queries, keys and values of latents. Shards have equal parts of the heads.
#[derive(Debug)]
pub struct LatentQkv {
    queries: Linear,
    keys_values: Linear,
    edges: ShardEdges,
    /// The heads of a shard.
    heads: LatentHeads,
    /// Columns of the latents of keys and values, of the rotated columns and of the queries' input.
    inputs: [usize; 3],
}

impl LatentQkv {
    /// Registers, below `prefix`, `q_b_proj`, or `q_proj` if queries have no latents, and `kv_b_proj`.
    /// `width` is that of the layer's input.
    ///
    /// # Errors
    /// Out of memory, a name that exists, heads that shards do not divide.
    pub(super) fn new(
        parameters: &mut Parameters,
        prefix: &str,
        (width, sizes): (usize, LatentSizes),
        settings: Settings,
        init: Init,
    ) -> Result<Self> {
        let all = settings.heads;
        let shards = parameters.shards().all;
        let LatentSizes { rotated, interleaved, .. } = sizes;
        let heads = LatentHeads {
            query: all.query / shards,
            key_value: all.key_value / shards,
            rotated,
            plain: all.width - rotated,
            value_width: all.value_width,
            interleaved,
        };
        let mut linear = |name: &str, [inputs, outputs]: [usize; 2]| {
            let name = format!("{prefix}.{name}");
            Linear::without_bias(parameters, &name, inputs, outputs, init, Activation::None)
        };
        let (name, input) = match sizes.queries {
            0 => ("q_proj", width),
            latents => ("q_b_proj", latents),
        };
        let queries = linear(name, [input, all.query_columns()])?;
        let columns = all.key_value * (heads.plain + all.value_width);
        let keys_values = linear("kv_b_proj", [sizes.keys_values, columns])?;
        let edges = ShardEdges::new(parameters);
        Ok(LatentQkv { queries, keys_values, edges, heads, inputs: [sizes.keys_values, rotated, input] })
    }

    /// Returns the latents of keys and values, the rotated columns of keys and the input of queries for each
    /// shard that is here: all of them are copied at once.
    pub(super) fn enter(&self, tape: &Tape, parts: [Var; 3]) -> Result<[Var; 3]> {
        if !self.edges.is_sharded() {
            return Ok(parts);
        }
        let axis = parts[0].tensor().shape().dims().len() - 1;
        let joined = within(tape, "latents", || Ok(ops::concatenate(tape, &parts, axis)?))?;
        let copies = self.edges.enter(tape, joined)?;
        let parts = within(tape, "latents", || Ok(ops::split(tape, copies, COLUMNS, &self.inputs)?))?;
        <[Var; 3]>::try_from(parts)
            .map_err(|parts| NnError::Sizes(format!("{} parts of latents", parts.len())))
    }

    /// The edges of the layers.
    pub(super) fn edges(&self) -> ShardEdges {
        self.edges
    }

    /// Maps the results of [`LatentQkv::enter`], of one shard, to queries, keys and values without their
    /// positions, arranged as attention takes them.
    ///
    /// # Errors
    /// Another shape or type, out of memory.
    pub(super) fn forward_shard(
        &self,
        tape: &Tape,
        shard: usize,
        [latents, rotated, input]: [Var; 3],
    ) -> Result<Var> {
        let queries = self.queries.forward_shard(tape, shard, input)?;
        self.pack(tape, shard, [latents, rotated, queries])
    }

    fn pack(&self, tape: &Tape, shard: usize, [latents, rotated, queries]: [Var; 3]) -> Result<Var> {
        let keys_values = self.keys_values.forward_shard(tape, shard, latents)?;
        within(tape, "latents", || Ok(ops::latent_qkv(tape, [queries, keys_values, rotated], self.heads)?))
    }

    /// Maps the parts of a shard to the result of attention in a pass with caches, which keep latents.
    ///
    /// # Errors
    /// As [`LatentQkv::forward_shard`]; no cache.
    pub(super) fn attend_cached(
        &self,
        tape: &Tape,
        (shard, [latents, rotated, input]): (usize, [Var; 3]),
        settings: Settings,
        (rotary, sinks): (Option<&Rotary>, Option<&Weight>),
    ) -> Result<Var> {
        let queries = self.queries.forward_shard(tape, shard, input)?;
        let LinearShard { weight, adapter, .. } = &self.keys_values.shards[shard];
        let adapter = adapter.as_ref();
        let heads = settings.heads.divided(self.edges.shards());
        let settings = Settings { heads, ..settings };
        let layer = LatentLayer { heads: self.heads, settings, rotary, sinks, weight, adapter };
        if !tape.pass().fills_cache() {
            return within(tape, "attention", || Ok(layer.extend(tape, [queries, latents, rotated])?));
        }
        let mut qkv = self.pack(tape, shard, [latents.clone(), rotated, queries])?;
        if let Some(rotary) = rotary {
            qkv = ops::rotary(tape, qkv, self.heads.query + self.heads.key_value, rotary)?;
        }
        within(tape, "attention", || Ok(layer.fill(tape, &qkv, &latents)?))
    }
}
