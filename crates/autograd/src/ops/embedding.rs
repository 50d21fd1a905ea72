//! Token embedding, with or without a table of positions.

use tensor::Tensor;
use tensor::ops;

use super::{named, only};
use crate::error::Result;
use crate::rule::{Rule, Saved};
use crate::sink::GradientSink;
use crate::tape::{Tape, Var};
use crate::weight::Weight;

/// Backward of [`embedding`].
#[derive(Debug)]
pub struct EmbeddingRule {
    tokens: Tensor,
    table: Weight,
    positions: Option<Weight>,
    gradient: Option<Tensor>,
}

/// Rows of `table` by token, plus rows of `positions` by time where it is given. `tokens` is `[batch, time]`
/// of u32, `table` `[vocabulary, width]`, `positions` `[context, width]` with time ≤ context; the result is
/// `[batch, time, width]`. Errors: as [`ops::embedding::forward`].
pub fn embedding(tape: &Tape, tokens: &Tensor, table: &Weight, positions: Option<&Weight>) -> Result<Var> {
    let forward = ops::embedding::forward(tokens, table.tensor(), positions.map(Weight::tensor));
    let output = named("embedding", forward)?;
    let rule = || EmbeddingRule {
        tokens: tokens.clone(),
        table: table.clone(),
        positions: positions.cloned(),
        gradient: None,
    };
    tape.record_one(&[], output, rule)
}

impl Rule for EmbeddingRule {
    fn operator(&self) -> &'static str {
        "embedding"
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        vec![Saved::new("tokens", &self.tokens)]
    }

    fn has_weights(&self) -> bool {
        true
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
        let table = sink.target(&self.table)?;
        let positions = self.positions.as_ref().map(|positions| sink.target(positions)).transpose()?;
        ops::embedding::backward_weight(gradient, &self.tokens, &table, positions.as_ref())?;
        if let Some(positions) = &self.positions {
            sink.ready(positions.use_id())?;
        }
        sink.ready(self.table.use_id())
    }
}
