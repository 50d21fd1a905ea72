//! Attention with latents in passes that generate text. Caches keep the tokens' latents and the rotated
//! columns of their keys. Records nothing.

use device::{Category, Request};
use tensor::ops;
use tensor::ops::attention::{Heads, Masks, Qkv, Settings};
use tensor::ops::latent_qkv::LatentHeads;
use tensor::ops::matmul::{self, Factor};
use tensor::ops::rearrange::{concatenate, slice, transpose};
use tensor::{DType, Tensor};

use super::{Adapter, Rotary, latent_qkv, named, rotary, values_of};
use crate::error::{AutogradError, Result};
use crate::sharded::Var;
use crate::tape::Tape;
use crate::weight::Weight;

const OPERATOR: &str = "attention";

/// A layer of attention with latents.
#[derive(Clone, Copy, Debug)]
pub struct LatentLayer<'a> {
    /// Heads in attention over whole sequences.
    pub heads: LatentHeads,
    /// Settings of these heads.
    pub settings: Settings,
    /// The rotary embedding, if any.
    pub rotary: Option<&'a Rotary>,
    /// Attention sinks, one per query head, if any.
    pub sinks: Option<&'a Weight>,
    /// Weight that expands latents to keys and values, `[key_value · (plain + value_width), latents]`.
    pub weight: &'a Weight,
    /// The weight's adapter.
    pub adapter: Option<&'a Adapter>,
}

impl LatentLayer<'_> {
    /// Computes attention over a whole sequence `qkv` with rotated keys, and stores `latents [1, time,
    /// latents]` and the rotated columns in a cache.
    ///
    /// # Errors
    /// The pass has no cache left, or an operator failed.
    pub fn fill(&self, tape: &Tape, qkv: &Var, latents: &Var) -> Result<Var> {
        let pass = tape.pass().cache.as_ref().ok_or(AutogradError::NoCache)?;
        let (Some(cache), Some(slot)) = (pass.next(), pass.slot()) else {
            return Err(AutogradError::NoCache);
        };
        let qkv = qkv.tensor();
        let first = self.heads.query_columns();
        let keys = || -> tensor::Result<Tensor> {
            concatenate(&[&slice(qkv, 2, first, self.heads.rotated)?, latents.tensor()], 2)
        };
        named(OPERATOR, keys().and_then(|keys| ops::cached_attention::store_keys(&keys, cache, slot)))?;
        let sinks = named(OPERATOR, values_of(self.sinks, qkv.dtype()))?;
        let masks = Masks { sinks: sinks.as_ref(), ..Masks::default() };
        let qkv = Qkv::Packed(qkv.clone());
        let output = named(OPERATOR, ops::attention::forward(&qkv, self.settings, masks, false))?;
        Ok(tape.constant(output.output))
    }

    /// Computes attention of the next token of every sequence in a cache, from its `queries`, its latents and
    /// the rotated columns of its key. Uses scores of latents instead of keys: q · (W c) = (Wᵀ q) · c.
    ///
    /// # Errors
    /// The pass has no cache left, or an operator failed.
    pub fn extend(&self, tape: &Tape, [queries, latents, rotated]: [Var; 3]) -> Result<Var> {
        let pass = tape.pass();
        let caches = pass.cache.as_ref().zip(pass.documents.as_ref());
        let (caches, documents) = caches.ok_or(AutogradError::NoCache)?;
        let cache = caches.next().ok_or(AutogradError::NoCache)?;
        let columns = latents.tensor().shape().columns();
        let dtype = queries.tensor().dtype();
        let weight = named(OPERATOR, self.weight(dtype, columns))?;
        let queries = named(OPERATOR, self.absorbed(queries.tensor(), &weight))?;
        let heads = self.heads.over_latents(columns);
        let mut qkv = latent_qkv(tape, [tape.constant(queries), latents, rotated], heads)?;
        if let Some(angles) = self.rotary {
            let angles = Rotary { head_width: Some(heads.width()), ..angles.clone() };
            qkv = rotary(tape, qkv, heads.query + 1, &angles)?;
        }
        let own = Heads { value_width: columns, ..Heads::grouped(heads.query, 1, heads.width()) };
        let settings = Settings { heads: own, scale: Some(self.settings.factor()), ..self.settings };
        let sinks = named(OPERATOR, values_of(self.sinks, dtype))?;
        let qkv = Qkv::Packed(qkv.into_tensor());
        let mixed = ops::cached_attention::forward(&qkv, settings, cache, documents, None, sinks.as_ref());
        let values = self.values(&named(OPERATOR, mixed)?, &weight);
        Ok(tape.constant(named(OPERATOR, values)?))
    }

    /// Returns the weight plus its adapter's term, `[key_value, plain + value_width, latents]`.
    fn weight(&self, dtype: DType, columns: usize) -> tensor::Result<Tensor> {
        let LatentHeads { key_value, plain, value_width, .. } = self.heads;
        let weight = self.weight.values(dtype)?;
        let weight = match self.adapter {
            None => weight,
            Some(adapter) => {
                let a = adapter.a.values(dtype)?;
                let b = adapter.expansion(weight.shape().rows(), dtype)?;
                let sum = matmul::product(Factor::plain(&b), Factor::plain(&a), Category::Activation)?;
                ops::add::into(&sum, &weight)?;
                sum
            }
        };
        weight.reshape([key_value, plain + value_width, columns])
    }

    /// Converts queries of keys to queries of latents: multiplies the plain columns of each head by the rows
    /// of its keys, and appends the rotated columns.
    fn absorbed(&self, queries: &Tensor, weight: &Tensor) -> tensor::Result<Tensor> {
        let LatentHeads { query, plain, rotated, .. } = self.heads;
        let rows = queries.shape().rows();
        let latents = weight.shape().columns();
        let heads = queries.reshape([rows, query, plain + rotated])?;
        let own = transpose(&slice(&heads, 2, 0, plain)?, 0, 1)?;
        let absorbed = self.each_head(&own, (weight, 0, plain), latents, false)?;
        let turned = slice(&heads, 2, plain, rotated)?;
        let both = concatenate(&[&transpose(&absorbed, 0, 1)?, &turned], 2)?;
        both.reshape([rows, 1, query * (latents + rotated)])
    }

    /// Computes the values of heads from their mixed latents.
    fn values(&self, mixed: &Tensor, weight: &Tensor) -> tensor::Result<Tensor> {
        let LatentHeads { query, plain, value_width, .. } = self.heads;
        let rows = mixed.shape().rows();
        let latents = weight.shape().columns();
        let own = transpose(&mixed.reshape([rows, query, latents])?, 0, 1)?;
        let values = self.each_head(&own, (weight, plain, value_width), value_width, true)?;
        transpose(&values, 0, 1)?.reshape([rows, 1, query * value_width])
    }

    /// Multiplies `x [query, rows, _]` for each head by `count` rows of the head's weight, starting at
    /// `first`, or by their transpose. The result is `[query, rows, columns]`.
    fn each_head(
        &self,
        x: &Tensor,
        (weight, first, count): (&Tensor, usize, usize),
        columns: usize,
        transposed: bool,
    ) -> tensor::Result<Tensor> {
        let &[query, rows, inner] = x.shape().dims() else { return Ok(x.clone()) };
        let &[heads, each, latents] = weight.shape().dims() else { return Ok(x.clone()) };
        let request = Request::new(Category::Activation, OPERATOR);
        let output = Tensor::empty(x.device(), [query, rows, columns], x.dtype(), request)?;
        for head in 0..query {
            let own = x.view(head * rows * inner, [rows, inner])?;
            let shared = head * heads / query;
            let part = weight.view((shared * each + first) * latents, [count, latents])?;
            let out = output.view(head * rows * columns, [rows, columns])?;
            matmul::into(Factor::plain(&own), Factor { tensor: &part, transposed }, &out)?;
        }
        Ok(output)
    }
}
