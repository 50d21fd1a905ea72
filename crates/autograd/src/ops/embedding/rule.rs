//! The backward rule of embedding.

use device::{Category, Request};
use tensor::Tensor;
use tensor::ops::embedding;

use super::super::only;
use super::operands::TokenTable;
use crate::error::Result;
use crate::rule::{Rule, Saved, ValueGradients};
use crate::sharded::TensorRanks;
use crate::sink::{GradientSink, give_gradient, ready, target};
use crate::tape::Tape;
use crate::weight::Weight;

pub(super) const OPERATOR: &str = "embedding";

/// Backward of [`embedding`](super::embedding()).
#[derive(Debug)]
pub struct EmbeddingRule {
    pub(super) tokens: Tensor,
    /// Positions of the tokens in their documents, if sequences have several and the table is in shards.
    pub(super) numbers: Option<Tensor>,
    pub(super) shards: TableShards,
    pub(super) positions: Option<Weight>,
    /// Gradient of all rows, kept between the input and weight halves of backward.
    pub(super) gradient: Option<Tensor>,
}

/// The local shards of a table, which have equally many rows each; an unsharded table is one shard.
#[derive(Debug)]
pub(super) struct TableShards {
    pub(super) weights: Vec<Weight>,
    is_whole: bool,
    pub(super) ranks: TensorRanks,
    /// The token whose row gets no gradient, if any.
    padding: Option<u32>,
}

impl TableShards {
    /// Returns the local shards of `table`.
    pub(super) fn new(tape: &Tape, table: TokenTable<'_>, padding: Option<u32>) -> Self {
        match table {
            TokenTable::Whole(weight) => {
                let weights = vec![weight.clone()];
                let ranks = TensorRanks::default();
                TableShards { weights, is_whole: true, ranks, padding }
            }
            TokenTable::Shards { tables, shards_rows } => {
                let weights = tables.to_vec();
                let ranks = TensorRanks::new(tape, shards_rows);
                TableShards { weights, is_whole: false, ranks, padding }
            }
        }
    }

    /// Returns the index of a local shard among all shards.
    pub(super) fn number(&self, shard: usize) -> usize {
        self.ranks.first_shard(self.weights.len()) + shard
    }

    fn first_token(&self, shard: usize) -> usize {
        self.number(shard) * self.weights[shard].shape().rows()
    }

    /// Converts `tokens` to row indices within a shard.
    pub(super) fn local_tokens(&self, tokens: &Tensor, shard: usize) -> tensor::Result<Tensor> {
        match self.is_whole {
            true => Ok(tokens.clone()),
            false => {
                let rows = self.weights[shard].shape().rows();
                embedding::local_tokens(tokens, self.first_token(shard), rows)
            }
        }
    }

    /// Returns the row of the padding token in a shard, if the shard contains it.
    fn local_padding(&self, shard: usize) -> Option<u32> {
        self.padding?.checked_sub(u32::try_from(self.first_token(shard)).ok()?)
    }
}

impl Rule for EmbeddingRule {
    fn operator(&self) -> &'static str {
        OPERATOR
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        let numbers = self.numbers.iter().map(|numbers| Saved::new("numbers", numbers));
        std::iter::once(Saved::new("tokens", &self.tokens)).chain(numbers).collect()
    }

    fn has_weights(&self) -> bool {
        self.shards.weights.iter().chain(&self.positions).any(Weight::is_trained)
    }

    fn backward_input(&mut self, outputs: ValueGradients, _wanted: &[bool]) -> Result<ValueGradients> {
        let request = Request::new(Category::ActivationGradient, OPERATOR);
        let gradient = self.shards.ranks.gather_rows(&only(outputs)?, request)?;
        let [batch, time] = [self.tokens.shape().rows(), self.tokens.shape().columns()];
        self.gradient = Some(gradient.reshape([batch, time, gradient.shape().columns()])?);
        Ok(Vec::new())
    }

    fn backward_weight(self: Box<Self>, sink: &mut dyn GradientSink) -> Result<()> {
        let EmbeddingRule { tokens, numbers, shards, positions, gradient: Some(gradient) } = &*self else {
            return Ok(());
        };
        // One call computes the gradients of a whole table and of its positions.
        let positions = positions.as_ref();
        let (beside, before) = if shards.is_whole { (positions, None) } else { (None, positions) };
        if let Some(weight) = before {
            give_gradient(sink, weight, |target| match numbers {
                Some(numbers) => embedding::backward_weight(gradient, numbers, target, None),
                None => embedding::backward_positions(gradient, target),
            })?;
        }
        for (shard, weight) in shards.weights.iter().enumerate() {
            let table = target(sink, weight)?;
            let positions = beside.map_or(Ok(None), |weight| target(sink, weight))?;
            match (&table, &positions) {
                (Some(table), _) => {
                    let local = shards.local_tokens(tokens, shard)?;
                    let padding = shards.local_padding(shard);
                    embedding::backward_padded(gradient, &local, padding, table, positions.as_ref())?;
                }
                (None, Some(positions)) => embedding::backward_positions(gradient, positions)?,
                (None, None) => {}
            }
            beside.map_or(Ok(()), |weight| ready(sink, weight))?;
            ready(sink, weight)?;
        }
        Ok(())
    }
}
