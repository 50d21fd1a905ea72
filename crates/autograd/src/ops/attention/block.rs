//! Tensors saved for one query block of an attention call.

use device::Request;
use tensor::Tensor;
use tensor::ops;
use tensor::ops::attention::{Masks, Output, Qkv, Settings};
use tensor::ops::dropout::Mask;

use super::super::named;
use crate::error::{AutogradError, Result};
use crate::rule::Saved;
use crate::sharded::{joined, part};
use crate::weight::Weight;

pub(super) const OPERATOR: &str = "attention";

/// Queries of whole sequences, or of one piece of each, with keys, values and results.
#[derive(Debug)]
pub(super) struct QueryBlock {
    /// Log-sum-exps and output, once computed.
    results: Option<[Tensor; 2]>,
    /// Queries, keys and values. A piece has only its own keys and values.
    qkv: Qkv<Tensor>,
    documents: Option<Tensor>,
    dropout: Option<Mask>,
}

impl QueryBlock {
    pub(super) fn new(qkv: Qkv<Tensor>, documents: Option<Tensor>, dropout: Option<Mask>) -> Self {
        QueryBlock { results: None, qkv, documents, dropout }
    }

    pub(super) fn saved(&self) -> impl Iterator<Item = Saved<'_>> {
        let qkv = self.qkv.names().iter().copied().zip(self.qkv.arrays());
        let results = ["logsumexp", "output"].into_iter().zip(self.results.iter().flatten());
        qkv.chain(results).map(|(name, tensor)| Saved::new(name, tensor))
    }

    /// Returns the piece's own keys and values; an error for whole sequences.
    pub(super) fn keys_values(&self) -> Result<&Tensor> {
        match &self.qkv {
            Qkv::Piece { arrays: [_, keys_values], .. } => Ok(keys_values),
            _ => Err(AutogradError::NotRecorded),
        }
    }

    fn masks(&self) -> Masks<'_> {
        Masks { documents: self.documents.as_ref(), dropout: self.dropout, sinks: None }
    }

    /// Returns the operands of an attention call. For a piece, `keys_values` are the keys and values of all
    /// pieces.
    fn operands(&self, keys_values: Option<&Tensor>) -> Qkv<Tensor> {
        match (&self.qkv, keys_values) {
            (Qkv::Piece { arrays: [queries, _], first }, Some(all)) => {
                Qkv::Piece { arrays: [queries.clone(), all.clone()], first: *first }
            }
            (qkv, _) => qkv.clone(),
        }
    }

    /// Computes and saves the results. Returns the output, with its largest magnitude if `measures`.
    pub(super) fn forward(
        &mut self,
        keys_values: Option<&Tensor>,
        settings: Settings,
        sinks: Option<&Tensor>,
        measures: bool,
    ) -> Result<Tensor> {
        let masks = Masks { sinks, ..self.masks() };
        let forward = ops::attention::forward(&self.operands(keys_values), settings, masks, measures);
        let Output { output, logsumexp } = named(OPERATOR, forward)?;
        self.results = Some([logsumexp, output.clone().with_maxima(None)]);
        Ok(output)
    }

    fn results(&self) -> Result<&[Tensor; 2]> {
        self.results.as_ref().ok_or(AutogradError::NotRecorded)
    }

    /// Returns the gradients of the sinks in f32; `None` if they are not trained.
    pub(super) fn sink_gradients(
        &self,
        gradient: &Tensor,
        sinks: &Weight,
        settings: Settings,
    ) -> Result<Option<Tensor>> {
        if !sinks.is_trained() {
            return Ok(None);
        }
        let [logsumexp, output] = self.results()?;
        let values = sinks.values(output.dtype())?;
        Ok(Some(ops::attention::sink_gradients(gradient, output, logsumexp, &values, settings.heads)?))
    }

    /// Returns the gradients of queries, keys and values.
    pub(super) fn backward(
        &self,
        keys_values: Option<&Tensor>,
        gradient: &Tensor,
        settings: Settings,
        measures: bool,
    ) -> Result<Vec<Tensor>> {
        let [logsumexp, output] = self.results()?;
        let operands = self.operands(keys_values);
        let masks = self.masks();
        let backward = ops::attention::backward;
        Ok(backward(gradient, &operands, output, logsumexp, settings, masks, measures)?.into_vec())
    }
}

/// Concatenates the arrays of several shards into one batch; a single array is returned unchanged.
///
/// Sequences are independent, and one large batch uses a GPU better than shards one after another. The copies
/// are a small part of attention's memory traffic.
pub(super) fn together(shards: Vec<Tensor>, request: Request) -> Result<Tensor> {
    match <[Tensor; 1]>::try_from(shards) {
        Ok([only]) => Ok(only),
        Err(shards) => joined(shards, request),
    }
}

/// Splits a batch made by [`together`] into views of its shards.
pub(super) fn apart(batch: Tensor, shards: usize) -> Result<Vec<Tensor>> {
    match shards {
        1 => Ok(vec![batch]),
        _ => (0..shards).map(|index| part(&batch, index, shards)).collect(),
    }
}
