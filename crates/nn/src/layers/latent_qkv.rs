//! Layers that expand latents to queries, keys and values.

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

/// Index of the column dimension in `[batch, time, columns]`.
const COLUMNS: usize = 2;

/// Expands latents to queries, keys and values. Shards have equal parts of the heads.
#[derive(Debug)]
pub struct LatentQkv {
    queries: Linear,
    keys_values: Linear,
    edges: ShardEdges,
    /// Heads of one shard.
    heads: LatentHeads,
    /// Numbers of columns of the keys' and values' latents, of the rotated columns, and of the queries'
    /// input.
    inputs: [usize; 3],
}

impl LatentQkv {
    /// Registers `q_b_proj` (or `q_proj` if queries have no latents) and `kv_b_proj` below `prefix`. `width`
    /// is the layer's input width.
    ///
    /// # Errors
    /// Memory is exhausted, a name exists, or the shards do not divide the heads.
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

    /// Copies the keys' and values' latents, the rotated columns of keys and the queries' input for each
    /// local shard, all in one copy.
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

    /// Maps the results of [`LatentQkv::enter`] for one shard to packed queries, keys and values, not yet
    /// rotated.
    ///
    /// # Errors
    /// The shape or dtype differs, or memory is exhausted.
    pub(super) fn forward_shard(
        &self,
        tape: &Tape,
        shard: usize,
        [latents_blr, rotated_blk, input_blr]: [Var; 3],
    ) -> Result<Var> {
        let queries_blc = self.queries.forward_shard(tape, shard, input_blr)?;
        self.pack(tape, shard, [latents_blr, rotated_blk, queries_blc])
    }

    fn pack(
        &self,
        tape: &Tape,
        shard: usize,
        [latents_blr, rotated_blk, queries_blc]: [Var; 3],
    ) -> Result<Var> {
        let keys_values_blc = self.keys_values.forward_shard(tape, shard, latents_blr)?;
        within(tape, "latents", || {
            Ok(ops::latent_qkv(tape, [queries_blc, keys_values_blc, rotated_blk], self.heads)?)
        })
    }

    /// Computes attention of a shard in a pass with caches, which store latents.
    ///
    /// # Errors
    /// Errors of [`LatentQkv::forward_shard`], or the pass has no cache.
    pub(super) fn attend_cached(
        &self,
        tape: &Tape,
        (shard, [latents_blr, rotated_blk, input_blr]): (usize, [Var; 3]),
        settings: Settings,
        (rotary, sinks): (Option<&Rotary>, Option<&Weight>),
    ) -> Result<Var> {
        let queries_blc = self.queries.forward_shard(tape, shard, input_blr)?;
        let LinearShard { weight, adapter, .. } = &self.keys_values.shards[shard];
        let adapter = adapter.as_ref();
        let heads = settings.heads.divided(self.edges.shards());
        let settings = Settings { heads, ..settings };
        let layer = LatentLayer { heads: self.heads, settings, rotary, sinks, weight, adapter };
        if !tape.pass().fills_cache() {
            return within(tape, "attention", || {
                Ok(layer.extend(tape, [queries_blc, latents_blr, rotated_blk])?)
            });
        }
        let mut qkv_blc = self.pack(tape, shard, [latents_blr.clone(), rotated_blk, queries_blc])?;
        if let Some(rotary) = rotary {
            qkv_blc = ops::rotary(tape, qkv_blc, self.heads.query + self.heads.key_value, rotary)?;
        }
        within(tape, "attention", || Ok(layer.fill(tape, &qkv_blc, &latents_blr)?))
    }
}
