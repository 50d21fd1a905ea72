//! Casts of variables, including those that autocast inserts before an operator.

use device::{Category, DType, Request};
use tensor::{Tensor, ops};

use super::{named, only};
use crate::error::Result;
use crate::rule::{Rule, Saved, ValueGradients};
use crate::sharded::{Var, map};
use crate::tape::Tape;

/// Backward of [`cast`], which saves nothing.
#[derive(Debug)]
pub struct CastRule {
    /// The input's dtype.
    dtype: DType,
}

/// Casts `x` to `dtype`: rounds it to a half type or widens it to f32. Returns `x` itself if it has that
/// dtype. The gradient is cast back.
///
/// # Errors
/// Both are half types, or memory is exhausted.
pub fn cast(tape: &Tape, x: Var, dtype: DType) -> Result<Var> {
    map(tape, [x], |_, [x]| {
        if x.tensor().dtype() == dtype {
            return Ok(x);
        }
        tape.begin("cast")?;
        let output = named("cast", converted(x.tensor(), dtype, Category::Activation))?;
        let dtype = x.tensor().dtype();
        tape.record_one(&[x.source()], output, || CastRule { dtype })
    })
}

/// Casts the operands of `operator` to the dtype in the pass's autocast table. They are unchanged without
/// autocast, without a table row, and for integers. Operators call this before [`Tape::begin`]; so should
/// operators of other programs that add a row. An operator whose only operands are weights casts its result
/// instead.
pub fn autocast<const N: usize>(tape: &Tape, operator: &str, operands: [Var; N]) -> Result<[Var; N]> {
    let mut operands = operands;
    autocast_all(tape, operator, &mut operands)?;
    Ok(operands)
}

/// [`autocast`] for any number of operands.
pub(super) fn autocast_all(tape: &Tape, operator: &str, operands: &mut [Var]) -> Result<()> {
    let dtypes = operands.iter().map(|operand| operand.tensor().dtype());
    let Some(dtype) = tape.pass().autocast.as_ref().and_then(|cast| cast.operand_type(operator, dtypes))
    else {
        return Ok(());
    };
    for operand in operands.iter_mut().filter(|operand| operand.tensor().dtype().is_float()) {
        *operand = cast(tape, operand.clone(), dtype)?;
    }
    Ok(())
}

/// Returns the values of `tensor` in another dtype.
pub(super) fn converted(tensor: &Tensor, dtype: DType, category: Category) -> tensor::Result<Tensor> {
    let result = tensor.like(dtype, Request::new(category, "cast"))?;
    ops::cast::into(tensor, &result)?;
    Ok(result)
}

impl Rule for CastRule {
    fn operator(&self) -> &'static str {
        "cast"
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        Vec::new()
    }

    fn backward_input(&mut self, outputs: ValueGradients, _wanted: &[bool]) -> Result<ValueGradients> {
        let gradient = only(outputs)?;
        Ok(vec![Some(converted(&gradient, self.dtype, Category::ActivationGradient)?)])
    }
}
