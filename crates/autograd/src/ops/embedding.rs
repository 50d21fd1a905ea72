//! Token embedding, without positions or with learned or fixed ones.

use tensor::Tensor;
use tensor::ops;

use super::{add, autocast, named, only};
use crate::error::Result;
use crate::rule::{Rule, Saved};
use crate::sink::{GradientSink, ready, target};
use crate::tape::{Tape, Var};
use crate::weight::Weight;

/// A table of positions, `[context, width]`.
#[derive(Clone, Copy, Debug)]
pub enum Positions<'a> {
    /// A parameter.
    Learned(&'a Weight),
    /// A constant table.
    Fixed(&'a Tensor),
}

impl<'a> Positions<'a> {
    pub(super) fn tensor(self) -> tensor::Result<Tensor> {
        match self {
            Positions::Learned(weight) => weight.stored(),
            Positions::Fixed(tensor) => Ok(tensor.clone()),
        }
    }

    pub(super) fn weight(self) -> Option<&'a Weight> {
        match self {
            Positions::Learned(weight) => Some(weight),
            Positions::Fixed(_) => None,
        }
    }
}

/// Backward of [`embedding`].
#[derive(Debug)]
pub struct EmbeddingRule {
    tokens: Tensor,
    padding: Option<u32>,
    table: Weight,
    positions: Option<Weight>,
    gradient: Option<Tensor>,
}

/// Rows of `table` by token, plus rows of `positions` by time if present, counted from the start of the
/// token's document. `tokens` is `[batch, time]` of u32, `table` `[vocabulary, width]`, with time at most the
/// rows of the positions; the result is `[batch, time, width]`. The row of the token `padding` gets no
/// gradient.
///
/// # Errors
/// As [`ops::embedding::forward`].
pub fn embedding(
    tape: &Tape,
    tokens: &Tensor,
    table: &Weight,
    positions: Option<Positions<'_>>,
    padding: Option<u32>,
) -> Result<Var> {
    match (positions, &tape.pass().documents) {
        (Some(positions), Some(documents)) => {
            let numbers = named("embedding", ops::embedding::positions(documents))?;
            let tokens = lookup(tape, tokens, table, None, padding)?;
            let positions = match positions {
                Positions::Learned(weight) => lookup(tape, &numbers, weight, None, None)?,
                Positions::Fixed(table) => {
                    let rows = ops::embedding::forward(&numbers, table, None);
                    tape.constant(named("embedding", rows)?)
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
    tape.begin("embedding")?;
    let rows = || {
        let (table, positions) = (table.stored()?, positions.map(Positions::tensor).transpose()?);
        ops::embedding::forward(tokens, &table, positions.as_ref())
    };
    let output = named("embedding", rows())?;
    let rule = || EmbeddingRule {
        tokens: tokens.clone(),
        padding,
        table: table.clone(),
        positions: positions.and_then(Positions::weight).cloned(),
        gradient: None,
    };
    let [output] = autocast(tape, "embedding", [tape.record_one(&[], output, rule)?])?;
    Ok(output)
}

impl Rule for EmbeddingRule {
    fn operator(&self) -> &'static str {
        "embedding"
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        vec![Saved::new("tokens", &self.tokens)]
    }

    fn has_weights(&self) -> bool {
        self.table.is_trained() || self.positions.as_ref().is_some_and(Weight::is_trained)
    }

    fn backward_input(
        &mut self,
        outputs: Vec<Option<Tensor>>,
        _wanted: &[bool],
    ) -> Result<Vec<Option<Tensor>>> {
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
