//! Embedding with a table that is here as a whole.

use tensor::Tensor;
use tensor::ops;

use super::super::{add, autocast, named, only};
use super::positions::Positions;
use crate::error::Result;
use crate::rule::{Rule, Saved, ValueGradients};
use crate::sharded::Var;
use crate::sink::{GradientSink, ready, target};
use crate::tape::Tape;
use crate::weight::Weight;

pub(super) const OPERATOR: &str = "embedding";

/// Backward of [`embedding`](super::embedding()) with a whole table.
#[derive(Debug)]
pub struct EmbeddingRule {
    tokens: Tensor,
    padding: Option<u32>,
    table: Weight,
    positions: Option<Weight>,
    gradient: Option<Tensor>,
}

/// [`embedding`](super::embedding()) with a whole table.
///
/// # Errors
/// As [`ops::embedding::forward`].
pub(super) fn embedding(
    tape: &Tape,
    tokens: &Tensor,
    table: &Weight,
    positions: Option<Positions<'_>>,
    padding: Option<u32>,
) -> Result<Var> {
    match (positions, &tape.pass().documents) {
        (Some(positions), Some(documents)) => {
            let numbers = named(OPERATOR, ops::embedding::positions(documents))?;
            let tokens = lookup(tape, tokens, table, None, padding)?;
            let positions = match positions {
                Positions::Learned(weight) => lookup(tape, &numbers, weight, None, None)?,
                Positions::Fixed(table) => {
                    let rows = ops::embedding::forward(&numbers, table, None);
                    tape.constant(named(OPERATOR, rows)?)
                }
            };
            add(tape, tokens, positions)
        }
        _ => lookup(tape, tokens, table, positions, padding),
    }
}

fn lookup(
    tape: &Tape,
    tokens: &Tensor,
    table: &Weight,
    positions: Option<Positions<'_>>,
    padding: Option<u32>,
) -> Result<Var> {
    tape.begin(OPERATOR)?;
    let rows = || {
        let (table, positions) = (table.stored()?, positions.map(Positions::tensor).transpose()?);
        ops::embedding::forward(tokens, &table, positions.as_ref())
    };
    let output = named(OPERATOR, rows())?;
    let rule = || EmbeddingRule {
        tokens: tokens.clone(),
        padding,
        table: table.clone(),
        positions: positions.and_then(Positions::weight).cloned(),
        gradient: None,
    };
    let [output] = autocast(tape, OPERATOR, [tape.record_one(&[], output, rule)?])?;
    Ok(output)
}

impl Rule for EmbeddingRule {
    fn operator(&self) -> &'static str {
        OPERATOR
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        vec![Saved::new("tokens", &self.tokens)]
    }

    fn has_weights(&self) -> bool {
        self.table.is_trained() || self.positions.as_ref().is_some_and(Weight::is_trained)
    }

    fn backward_input(&mut self, outputs: ValueGradients, _wanted: &[bool]) -> Result<ValueGradients> {
        self.gradient = Some(only(outputs)?);
        Ok(Vec::new())
    }

    fn backward_weight(self: Box<Self>, sink: &mut dyn GradientSink) -> Result<()> {
        let Some(gradient) = &self.gradient else { return Ok(()) };
        let table = target(sink, &self.table)?;
        let positions = self.positions.as_ref().map_or(Ok(None), |positions| target(sink, positions))?;
        match (&table, &positions) {
            (Some(table), _) => {
                let (tokens, positions) = (&self.tokens, positions.as_ref());
                ops::embedding::backward_padded(gradient, tokens, self.padding, table, positions)?;
            }
            (None, Some(positions)) => ops::embedding::backward_positions(gradient, positions)?,
            (None, None) => {}
        }
        self.positions.as_ref().map_or(Ok(()), |positions| ready(sink, positions))?;
        ready(sink, &self.table)
    }
}
