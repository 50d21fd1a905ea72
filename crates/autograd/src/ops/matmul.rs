//! Batched matmul.

use device::Category;
use tensor::Tensor;
use tensor::ops::matmul::{Factor, product};

use super::{autocast, named, only};
use crate::error::Result;
use crate::rule::{Rule, Saved, ValueGradients};
use crate::sharded::{Var, map};
use crate::tape::Tape;

/// Backward of [`matmul`] and [`matmul_transposed`].
#[derive(Debug)]
pub struct MatmulRule {
    /// The operands, dropped by backward.
    factors: Option<[Tensor; 2]>,
    /// Whether the second operand is transposed.
    transposed: bool,
}

/// Computes `a_mk [.., m, k]` · `b_kn [.., k, n]`, giving `[.., m, n]`. Outer dimensions must be equal.
pub fn matmul(tape: &Tape, a_mk: Var, b_kn: Var) -> Result<Var> {
    multiply(tape, a_mk, b_kn, false)
}

/// Computes `a_mk [.., m, k]` · bᵀ for `b_nk [.., n, k]`, giving `[.., m, n]`, without copying `b_nk`. Outer
/// dimensions must be equal.
pub fn matmul_transposed(tape: &Tape, a_mk: Var, b_nk: Var) -> Result<Var> {
    multiply(tape, a_mk, b_nk, true)
}

fn multiply(tape: &Tape, a: Var, b: Var, transposed: bool) -> Result<Var> {
    map(tape, [a, b], |_, [a, b]| {
        let [a, b] = autocast(tape, "matmul", [a, b])?;
        tape.begin("matmul")?;
        let factors = [a.tensor().clone(), b.tensor().clone()];
        let second = Factor { tensor: &factors[1], transposed };
        let output = named("matmul", product(Factor::plain(&factors[0]), second, Category::Activation))?;
        tape.record_one(&[a.source(), b.source()], output, || MatmulRule {
            factors: Some(factors),
            transposed,
        })
    })
}

impl Rule for MatmulRule {
    fn operator(&self) -> &'static str {
        "matmul"
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        let names = ["a", "b"].into_iter();
        self.factors.iter().flat_map(|both| names.clone().zip(both)).map(|(n, t)| Saved::new(n, t)).collect()
    }

    fn backward_input(&mut self, outputs: ValueGradients, wanted: &[bool]) -> Result<ValueGradients> {
        let gradient = only(outputs)?;
        let Some([a, b]) = self.factors.take() else { return Ok(vec![None, None]) };
        let category = Category::ActivationGradient;
        let left = || {
            let other = Factor { tensor: &b, transposed: !self.transposed };
            product(Factor::plain(&gradient), other, category)
        };
        let right = || match self.transposed {
            false => product(Factor::transposed(&a), Factor::plain(&gradient), category),
            true => product(Factor::transposed(&gradient), Factor::plain(&a), category),
        };
        Ok(vec![if wanted[0] { Some(left()?) } else { None }, if wanted[1] { Some(right()?) } else { None }])
    }
}
