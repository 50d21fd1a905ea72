//! A custom operator, whose row in the autocast table requests f32.

use plimsoll::autograd::precision::{Arithmetic, Operands, OperatorPrecision};
use plimsoll::autograd::{Result, Rule, Saved, Tape, ValueGradients, Var, map, ops};
use plimsoll::tensor::ops::pointwise::{self, Pair, Pointwise};

const NAME: &str = "branch_sum";

/// Factor of the sum, which keeps the variance of two branches of equal variance.
const FACTOR: f32 = std::f32::consts::FRAC_1_SQRT_2;

/// The operator's row in the autocast table: half-precision branches are widened before they are added.
pub(crate) const PRECISION: OperatorPrecision =
    OperatorPrecision { operator: NAME, operands: Operands::F32, arithmetic: Arithmetic::F32, in_f32: "" };

/// Backward rule of [`branch_sum`].
struct BranchSum;

/// Computes `(a + b) / √2` block by block, without knowing about ranks.
pub(crate) fn branch_sum(tape: &Tape, a: Var, b: Var) -> Result<Var> {
    map(tape, [a, b], |_, [a, b]| {
        let [a, b] = ops::autocast(tape, NAME, [a, b])?;
        tape.begin(NAME)?;
        let sum = pointwise::pair(a.tensor(), b.tensor(), Pair::Add)?;
        let output = pointwise::forward(&sum, Pointwise::Scale(FACTOR))?;
        tape.record_one(&[a.source(), b.source()], output, || BranchSum)
    })
}

impl Rule for BranchSum {
    fn operator(&self) -> &'static str {
        NAME
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        Vec::new()
    }

    fn backward_input(&mut self, outputs: ValueGradients, wanted: &[bool]) -> Result<ValueGradients> {
        let Some(Some(gradient)) = outputs.into_iter().next() else { return Ok(vec![None; wanted.len()]) };
        let scaled = pointwise::forward(&gradient, Pointwise::Scale(FACTOR))?;
        Ok(wanted.iter().map(|wanted| wanted.then(|| scaled.clone())).collect())
    }
}
