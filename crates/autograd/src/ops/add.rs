//! Addition of two tensors of one shape.

use tensor::ops;

use super::{autocast, named, only};
use crate::error::Result;
use crate::rule::{Rule, Saved, ValueGradients};
use crate::sharded::{Var, map};
use crate::tape::Tape;

/// Backward of [`add`]: both inputs get the output's gradient.
#[derive(Debug)]
pub struct AddRule;

/// Computes `a + b`.
pub fn add(tape: &Tape, a: Var, b: Var) -> Result<Var> {
    map(tape, [a, b], |_, [a, b]| {
        let [a, b] = autocast(tape, "add", [a, b])?;
        tape.begin("add")?;
        let output = named("add", ops::add::forward(a.tensor(), b.tensor()))?;
        tape.record_one(&[a.source(), b.source()], output, || AddRule)
    })
}

impl Rule for AddRule {
    fn operator(&self) -> &'static str {
        "add"
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        Vec::new()
    }

    fn backward_input(&mut self, outputs: ValueGradients, wanted: &[bool]) -> Result<ValueGradients> {
        let gradient = only(outputs)?;
        Ok(wanted.iter().map(|wanted| wanted.then(|| gradient.clone())).collect())
    }
}
