//! Matmuls of stacks of matrices.

use device::Category;
use tensor::Tensor;
use tensor::ops::matmul::{Factor, product};

use super::{named, only};
use crate::error::Result;
use crate::rule::{Rule, Saved};
use crate::tape::{Tape, Var};

/// Backward of [`matmul`].
#[derive(Debug)]
pub struct MatmulRule {
    /// The operands.
    factors: Option<[Tensor; 2]>,
}

/// `a [.., m, k]` · `b [.., k, n]` to `[.., m, n]`, of equal outer dimensions. Errors: as [`product`].
pub fn matmul(tape: &Tape, a: Var, b: Var) -> Result<Var> {
    let factors = [a.tensor().clone(), b.tensor().clone()];
    let forward = product(Factor::plain(&factors[0]), Factor::plain(&factors[1]), Category::Activation);
    let output = named("matmul", forward)?;
    tape.record_one(&[a.source(), b.source()], output, || MatmulRule { factors: Some(factors) })
}

impl Rule for MatmulRule {
    fn operator(&self) -> &'static str {
        "matmul"
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        let names = ["a", "b"].into_iter();
        self.factors.iter().flat_map(|both| names.clone().zip(both)).map(|(n, t)| Saved::new(n, t)).collect()
    }

    fn backward_input(
        &mut self,
        outputs: Vec<Option<Tensor>>,
        wanted: &[bool],
    ) -> Result<Vec<Option<Tensor>>> {
        let gradient = only(outputs)?;
        let Some([a, b]) = self.factors.take() else { return Ok(vec![None, None]) };
        let category = Category::ActivationGradient;
        let left = || product(Factor::plain(&gradient), Factor::transposed(&b), category);
        let right = || product(Factor::transposed(&a), Factor::plain(&gradient), category);
        Ok(vec![if wanted[0] { Some(left()?) } else { None }, if wanted[1] { Some(right()?) } else { None }])
    }
}
