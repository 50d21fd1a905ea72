//! Sums, means and maxima along one dimension, whose size becomes 1.

use tensor::ops::pointwise::Pointwise;
use tensor::ops::rearrange;
use tensor::ops::reduce::{self, Reduction};
use tensor::{Shape, Tensor};

use super::{autocast, named, only, pointwise::pointwise};
use crate::error::Result;
use crate::rule::{Rule, Saved, ValueGradients};
use crate::sharded::{Var, map};
use crate::tape::Tape;

/// Backward of [`sum`].
#[derive(Debug)]
pub struct SumRule {
    shape: Shape,
}

/// Returns the sum along dimension `axis`.
pub fn sum(tape: &Tape, x: Var, axis: usize) -> Result<Var> {
    map(tape, [x], |_, [x]| {
        let [x] = autocast(tape, "sum", [x])?;
        tape.begin("sum")?;
        let output = named("sum", reduce::forward(x.tensor(), axis, Reduction::Sum))?;
        let shape = x.tensor().shape();
        tape.record_one(&[x.source()], output, || SumRule { shape })
    })
}

/// Returns the mean along dimension `axis`.
pub fn mean(tape: &Tape, x: Var, axis: usize) -> Result<Var> {
    let count = x.tensor().shape().dims().get(axis).copied().unwrap_or(1);
    let total = sum(tape, x, axis)?;
    pointwise(tape, total, Pointwise::Scale(1.0 / count as f32))
}

impl Rule for SumRule {
    fn operator(&self) -> &'static str {
        "sum"
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        Vec::new()
    }

    fn backward_input(&mut self, outputs: ValueGradients, _wanted: &[bool]) -> Result<ValueGradients> {
        Ok(vec![Some(rearrange::repeat(&only(outputs)?, self.shape)?)])
    }
}

/// Backward of [`maximum`].
#[derive(Debug)]
pub struct MaximumRule {
    axis: usize,
    /// Input and output.
    saved: Option<[Tensor; 2]>,
}

/// Returns the maximum along dimension `axis`. Its gradient goes to the first of the largest elements.
pub fn maximum(tape: &Tape, x: Var, axis: usize) -> Result<Var> {
    map(tape, [x], |_, [x]| {
        let [x] = autocast(tape, "maximum", [x])?;
        tape.begin("maximum")?;
        let output = named("maximum", reduce::forward(x.tensor(), axis, Reduction::Maximum))?;
        let rule = || MaximumRule { axis, saved: Some([x.tensor().clone(), output.clone()]) };
        tape.record_one(&[x.source()], output.clone(), rule)
    })
}

impl Rule for MaximumRule {
    fn operator(&self) -> &'static str {
        "maximum"
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        let names = ["x", "y"].into_iter();
        self.saved.iter().flat_map(|both| names.clone().zip(both)).map(|(n, t)| Saved::new(n, t)).collect()
    }

    fn backward_input(&mut self, outputs: ValueGradients, _wanted: &[bool]) -> Result<ValueGradients> {
        let gradient = only(outputs)?;
        let Some([x, y]) = self.saved.take() else { return Ok(vec![None]) };
        Ok(vec![Some(reduce::backward_maximum(&gradient, &x, &y, self.axis)?)])
    }
}
