//! Elementwise functions of one variable, and of two that broadcast.

use tensor::ops::pointwise::{self, Pair, Pointwise};
use tensor::ops::reduce::{self, Reduction};
use tensor::{Shape, Tensor};

use super::{autocast, named, only};
use crate::error::Result;
use crate::rule::{Rule, Saved, ValueGradients};
use crate::sharded::{Var, map};
use crate::tape::Tape;

/// Backward of [`pointwise()`].
#[derive(Debug)]
pub struct PointwiseRule {
    function: Pointwise,
    /// The input, unless the derivative is constant.
    x: Option<Tensor>,
}

/// Applies `function` to every element.
pub fn pointwise(tape: &Tape, x: Var, function: Pointwise) -> Result<Var> {
    map(tape, [x], |_, [x]| {
        let [x] = autocast(tape, "pointwise", [x])?;
        tape.begin("pointwise")?;
        let output = named("pointwise", pointwise::forward(x.tensor(), function))?;
        let source = x.source();
        let x = Some(x.into_tensor()).filter(|_| number_of(function).is_none());
        tape.record_one(&[source], output, || PointwiseRule { function, x })
    })
}

/// Returns the derivative of a function with a constant derivative; `None` for others.
fn number_of(function: Pointwise) -> Option<f32> {
    match function {
        Pointwise::Scale(number) => Some(number),
        Pointwise::Shift(_) => Some(1.0),
        _ => None,
    }
}

impl Rule for PointwiseRule {
    fn operator(&self) -> &'static str {
        "pointwise"
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        self.x.iter().map(|x| Saved::new("x", x)).collect()
    }

    fn backward_input(&mut self, outputs: ValueGradients, _wanted: &[bool]) -> Result<ValueGradients> {
        let gradient = only(outputs)?;
        if let Some(number) = number_of(self.function) {
            return Ok(vec![Some(pointwise::forward(&gradient, Pointwise::Scale(number))?)]);
        }
        let Some(x) = self.x.take() else { return Ok(vec![None]) };
        Ok(vec![Some(pointwise::backward(&gradient, &x, self.function)?)])
    }
}

/// Backward of [`pair`].
#[derive(Debug)]
pub struct PairRule {
    function: Pair,
    /// Shapes of the operands.
    shapes: [Shape; 2],
    /// The operands, if the gradients depend on them.
    operands: Option<[Tensor; 2]>,
}

/// Applies `function` to every pair of elements. A dimension of size 1 broadcasts to the other operand's
/// size.
pub fn pair(tape: &Tape, a: Var, b: Var, function: Pair) -> Result<Var> {
    map(tape, [a, b], |_, [a, b]| {
        let [a, b] = autocast(tape, "pair", [a, b])?;
        tape.begin("pair")?;
        let output = named("pair", pointwise::pair(a.tensor(), b.tensor(), function))?;
        let sources = [a.source(), b.source()];
        let shapes = [a.tensor().shape(), b.tensor().shape()];
        let operands = match function {
            Pair::Add | Pair::Subtract => None,
            Pair::Multiply | Pair::Divide => Some([a.into_tensor(), b.into_tensor()]),
        };
        tape.record_one(&sources, output, || PairRule { function, shapes, operands })
    })
}

/// Computes a − b.
pub fn subtract(tape: &Tape, a: Var, b: Var) -> Result<Var> {
    pair(tape, a, b, Pair::Subtract)
}

/// Computes a · b.
pub fn multiply(tape: &Tape, a: Var, b: Var) -> Result<Var> {
    pair(tape, a, b, Pair::Multiply)
}

/// Computes a / b.
pub fn divide(tape: &Tape, a: Var, b: Var) -> Result<Var> {
    pair(tape, a, b, Pair::Divide)
}

impl PairRule {
    /// Computes the gradient of operand 0 or 1, before it is summed over broadcast dimensions.
    fn full(&self, gradient: &Tensor, operand: usize) -> tensor::Result<Tensor> {
        let scaled = |number| pointwise::forward(gradient, Pointwise::Scale(number));
        match (self.function, &self.operands, operand) {
            (Pair::Subtract, _, 1) => scaled(-1.0),
            (Pair::Multiply, Some([_, b]), 0) => pointwise::pair(gradient, b, Pair::Multiply),
            (Pair::Multiply, Some([a, _]), _) => pointwise::pair(gradient, a, Pair::Multiply),
            (Pair::Divide, Some([_, b]), 0) => pointwise::pair(gradient, b, Pair::Divide),
            (Pair::Divide, Some([a, b]), _) => {
                let squared = pointwise::forward(b, Pointwise::Square)?;
                let slope = pointwise::pair(a, &squared, Pair::Divide)?;
                let product = pointwise::pair(gradient, &slope, Pair::Multiply)?;
                pointwise::forward(&product, Pointwise::Scale(-1.0))
            }
            _ => Ok(gradient.clone()),
        }
    }
}

/// Sums the dimensions that have size 1 in `shape`.
fn summed_to(mut gradient: Tensor, shape: Shape) -> tensor::Result<Tensor> {
    for (axis, size) in shape.dims().iter().enumerate() {
        if *size == 1 && gradient.shape().dims()[axis] != 1 {
            gradient = reduce::forward(&gradient, axis, Reduction::Sum)?;
        }
    }
    Ok(gradient)
}

impl Rule for PairRule {
    fn operator(&self) -> &'static str {
        "pair"
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        let names = ["a", "b"].into_iter();
        self.operands.iter().flat_map(|both| names.clone().zip(both)).map(|(n, t)| Saved::new(n, t)).collect()
    }

    fn backward_input(&mut self, outputs: ValueGradients, wanted: &[bool]) -> Result<ValueGradients> {
        let gradient = only(outputs)?;
        let input_gradient = |(operand, wanted): (usize, &bool)| match wanted {
            true => Ok(Some(summed_to(self.full(&gradient, operand)?, self.shapes[operand])?)),
            false => Ok(None),
        };
        let gradients = wanted.iter().enumerate().map(input_gradient).collect::<Result<Vec<_>>>()?;
        self.operands = None;
        Ok(gradients)
    }
}
