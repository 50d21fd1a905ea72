//! Softmax over the innermost dimension.

use tensor::Tensor;
use tensor::ops;

use super::{autocast, named, only};
use crate::error::Result;
use crate::rule::{Rule, Saved, ValueGradients};
use crate::sharded::{Var, map};
use crate::tape::Tape;

/// Backward of [`softmax`].
#[derive(Debug)]
pub struct SoftmaxRule {
    /// The output; dropped by backward.
    y: Option<Tensor>,
}

/// Computes softmax along the innermost dimension.
pub fn softmax(tape: &Tape, x: Var) -> Result<Var> {
    map(tape, [x], |_, [x]| {
        let [x] = autocast(tape, "softmax", [x])?;
        tape.begin("softmax")?;
        let y = named("softmax", ops::softmax::forward(x.tensor()))?;
        tape.record_one(&[x.source()], y.clone(), || SoftmaxRule { y: Some(y) })
    })
}

impl Rule for SoftmaxRule {
    fn operator(&self) -> &'static str {
        "softmax"
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        self.y.iter().map(|y| Saved::new("y", y)).collect()
    }

    fn backward_input(&mut self, outputs: ValueGradients, _wanted: &[bool]) -> Result<ValueGradients> {
        let gradient = only(outputs)?;
        let Some(y) = self.y.take() else { return Ok(vec![None]) };
        Ok(vec![Some(ops::softmax::backward(&gradient, &y)?)])
    }
}
