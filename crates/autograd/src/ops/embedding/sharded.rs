//! Embedding with a table whose vocabulary is in shards.

use device::{Category, Request};
use tensor::{Tensor, ops};

use super::super::{autocast, named, only};
use super::positions::Positions;
use super::whole::OPERATOR;
use crate::error::Result;
use crate::rule::{Rule, Saved, ValueGradients};
use crate::sharded::{TensorRanks, Var};
use crate::sink::{GradientSink, ready, target};
use crate::tape::Tape;
use crate::weight::Weight;

/// Backward of [`embedding`](super::embedding()) with shards of the table.
#[derive(Debug)]
pub struct ShardedEmbeddingRule {
    ranks: TensorRanks,
    tokens: Tensor,
    padding: Option<u32>,
    /// Positions of the tokens in their documents, if sequences have several.
    numbers: Option<Tensor>,
    tables: Vec<Weight>,
    positions: Option<Weight>,
    /// The gradient of all rows, from the input half to the weight half.
    gradient: Option<Tensor>,
}

/// [`embedding`](super::embedding()) with `tables`, the shards that are here. With `shards_rows`, returns the
/// rows that are here.
///
/// # Errors
/// As [`ops::embedding::forward`]; no table; a failed collective.
pub(super) fn embedding(
    tape: &Tape,
    tokens: &Tensor,
    (tables, shards_rows): (&[Weight], bool),
    positions: Option<Positions<'_>>,
    padding: Option<u32>,
) -> Result<Var> {
    tape.begin(OPERATOR)?;
    let ranks = TensorRanks::new(tape, shards_rows);
    let documents = tape.pass().documents.as_ref().filter(|_| positions.is_some());
    let numbers = named(OPERATOR, documents.map(ops::embedding::positions).transpose())?;
    let first = ranks.first_shard(tables.len());
    let rows = |shard: usize| -> tensor::Result<Tensor> {
        let (table, local) = (tables[shard].stored()?, local_tokens(tokens, &tables[shard], first + shard)?);
        // The first shard of all adds the positions: one addition, whichever shard has the token.
        let adds = first + shard == 0;
        match (&numbers, positions.filter(|_| shard == 0)) {
            (Some(numbers), Some(positions)) => {
                let rows = ops::embedding::forward(&local, &table, None)?;
                // Looked up everywhere, so that all allocate alike.
                let positions = ops::embedding::forward(numbers, &positions.tensor()?, None)?;
                if adds {
                    ops::add::into(&rows, &positions)?;
                }
                Ok(rows)
            }
            (_, positions) => {
                let positions = positions.filter(|_| adds).map(Positions::tensor).transpose()?;
                ops::embedding::forward(&local, &table, positions.as_ref())
            }
        }
    };
    let parts = named(OPERATOR, (0..tables.len()).map(rows).collect::<tensor::Result<Vec<_>>>())?;
    let output = ranks.sum_rows(parts, Request::new(Category::Activation, OPERATOR))?;
    let rule = || ShardedEmbeddingRule {
        ranks,
        tokens: tokens.clone(),
        padding,
        numbers,
        tables: tables.to_vec(),
        positions: positions.and_then(Positions::weight).cloned(),
        gradient: None,
    };
    let [output] = autocast(tape, OPERATOR, [tape.record_one(&[], output, rule)?])?;
    Ok(output)
}

/// The numbers of `tokens` in the table of a shard.
fn local_tokens(tokens: &Tensor, table: &Weight, shard: usize) -> tensor::Result<Tensor> {
    let rows = table.shape().rows();
    ops::embedding::local_tokens(tokens, shard * rows, rows)
}

impl Rule for ShardedEmbeddingRule {
    fn operator(&self) -> &'static str {
        OPERATOR
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        let numbers = self.numbers.iter().map(|numbers| Saved::new("numbers", numbers));
        std::iter::once(Saved::new("tokens", &self.tokens)).chain(numbers).collect()
    }

    fn has_weights(&self) -> bool {
        self.tables.iter().chain(&self.positions).any(Weight::is_trained)
    }

    fn backward_input(&mut self, outputs: ValueGradients, _wanted: &[bool]) -> Result<ValueGradients> {
        let request = Request::new(Category::ActivationGradient, OPERATOR);
        let gradient = self.ranks.gather_rows(&only(outputs)?, request)?;
        let [batch, time] = [self.tokens.shape().rows(), self.tokens.shape().columns()];
        self.gradient = Some(gradient.reshape([batch, time, gradient.shape().columns()])?);
        Ok(Vec::new())
    }

    fn backward_weight(self: Box<Self>, sink: &mut dyn GradientSink) -> Result<()> {
        let Some(gradient) = &self.gradient else { return Ok(()) };
        if let Some(weight) = &self.positions {
            match (target(sink, weight)?, &self.numbers) {
                (Some(target), Some(numbers)) => {
                    ops::embedding::backward_weight(gradient, numbers, &target, None)?;
                }
                (Some(target), None) => ops::embedding::backward_positions(gradient, &target)?,
                (None, _) => {}
            }
            ready(sink, weight)?;
        }
        let first = self.ranks.first_shard(self.tables.len());
        for (shard, table) in self.tables.iter().enumerate() {
            if let Some(target) = target(sink, table)? {
                let (local, start) = (
                    local_tokens(&self.tokens, table, first + shard)?,
                    (first + shard) * table.shape().rows(),
                );
                let padding = self.padding.and_then(|token| token.checked_sub(u32::try_from(start).ok()?));
                ops::embedding::backward_padded(gradient, &local, padding, &target, None)?;
            }
            ready(sink, table)?;
        }
        Ok(())
    }
}
