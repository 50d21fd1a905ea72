//! A sigmoid gate of every element, or of every row.

use device::Category;
use tensor::Tensor;
use tensor::ops::sigmoid_gate;

use super::cast::converted;
use super::{autocast, named, only};
use crate::error::Result;
use crate::rule::{Rule, Saved, ValueGradients};
use crate::sharded::{Var, map};
use crate::tape::Tape;

const OPERATOR: &str = "sigmoid_gate";

/// Backward of [`sigmoid_gate()`].
#[derive(Debug)]
pub struct SigmoidGateRule {
    /// Input and gates, dropped by backward.
    saved: Option<[Tensor; 2]>,
}

/// Computes `x · sigmoid(z)`. `z` has the shape of `x`, or one column for each of its rows.
pub fn sigmoid_gate(tape: &Tape, x: Var, z: Var) -> Result<Var> {
    map(tape, [x, z], |_, operands| {
        let operands = autocast(tape, OPERATOR, operands)?;
        tape.begin(OPERATOR)?;
        let sources = operands.each_ref().map(Var::source);
        let operands = operands.map(Var::into_tensor);
        let output = named(OPERATOR, sigmoid_gate::forward(&operands[0], &operands[1]))?;
        tape.record_one(&sources, output, || SigmoidGateRule { saved: Some(operands) })
    })
}

impl Rule for SigmoidGateRule {
    fn operator(&self) -> &'static str {
        OPERATOR
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        self.saved.iter().flat_map(|[x, z]| [Saved::new("x", x), Saved::new("z", z)]).collect()
    }

    fn backward_input(&mut self, outputs: ValueGradients, _wanted: &[bool]) -> Result<ValueGradients> {
        let dy = only(outputs)?;
        let Some([x, z]) = self.saved.take() else { return Ok(vec![None; 2]) };
        let [x_dtype, dy_dtype] = [&x, &dy].map(Tensor::dtype);
        if x_dtype == dy_dtype {
            return Ok(sigmoid_gate::backward(&dy, &x, &z)?.into_iter().map(Some).collect());
        }
        // Partial sums of shards are in f32, and their gradients in the type of the rounded sum.
        let dy = converted(&dy, x_dtype, Category::ActivationGradient)?;
        let [dx, dz] = sigmoid_gate::backward(&dy, &x, &z)?;
        Ok(vec![Some(converted(&dx, dy_dtype, Category::ActivationGradient)?), Some(dz)])
    }
}
