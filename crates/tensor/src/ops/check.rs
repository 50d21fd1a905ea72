//! Checks of operands before an operator allocates.

use device::DType;

use super::GradientTarget;
use crate::{Result, Shape, Tensor, TensorError};

/// Refuses a tensor of another type than `expected`.
pub(crate) fn dtype(
    operator: &'static str,
    operand: &'static str,
    tensor: &Tensor,
    expected: DType,
) -> Result<()> {
    if tensor.dtype() == expected {
        return Ok(());
    }
    Err(TensorError::DType { operator, operand, actual: tensor.dtype(), expected })
}

/// Refuses each named tensor that is not f32, as statistics and optimizer states are.
pub(crate) fn f32s(operator: &'static str, operands: &[(&'static str, &Tensor)]) -> Result<()> {
    operands.iter().try_for_each(|(operand, tensor)| dtype(operator, operand, tensor, DType::F32))
}

/// The types that operators compute in, as `FOR_EACH_TYPE` in `kernels/common.cuh` lists them, f32 first.
pub const DTYPES: &[DType] = &[DType::F32, DType::Bf16, DType::F16];

/// Returns the common compute type of the named operands, f32 if there are no operands.
///
/// # Errors
/// A type that operators do not compute in, operands of different types.
pub(crate) fn computed(operator: &'static str, operands: &[(&'static str, &Tensor)]) -> Result<DType> {
    let Some((operand, first)) = operands.first() else { return Ok(DType::F32) };
    let expected = first.dtype();
    if !DTYPES.contains(&expected) {
        return Err(unsupported(operator, operand, first));
    }
    operands.iter().try_for_each(|(operand, tensor)| dtype(operator, operand, tensor, expected))?;
    Ok(expected)
}

pub(crate) fn unsupported(operator: &'static str, operand: &'static str, tensor: &Tensor) -> TensorError {
    TensorError::Unsupported { operator, operand, actual: tensor.dtype(), supported: DTYPES }
}

/// Returns the common type of gradients: all f32, or all of one half type.
pub(crate) fn gradients<'a>(
    operator: &'static str,
    gradients: impl Iterator<Item = &'a Tensor>,
) -> Result<DType> {
    computed(operator, &gradients.map(|gradient| ("gradient", gradient)).collect::<Vec<_>>())
}

/// Returns the common type of gradient targets: f32, or the compute type `computed`.
///
/// # Errors
/// Another type, or targets of different types.
pub(crate) fn targets(
    operator: &'static str,
    computed: DType,
    targets: &[(&'static str, &GradientTarget)],
) -> Result<DType> {
    let expected = match targets.first() {
        Some((_, first)) if first.tensor.dtype() == computed => computed,
        _ => DType::F32,
    };
    targets.iter().try_for_each(|(operand, target)| dtype(operator, operand, &target.tensor, expected))?;
    Ok(expected)
}

/// Refuses a tensor that a matmul adds to unless its type is `computed` or f32.
pub(crate) fn sum(
    operator: &'static str,
    operand: &'static str,
    tensor: &Tensor,
    computed: DType,
) -> Result<()> {
    let expected = if tensor.dtype() == DType::F32 { DType::F32 } else { computed };
    dtype(operator, operand, tensor, expected)
}

/// Refuses a tensor whose shape is not `expected`.
pub(crate) fn shape(
    operator: &'static str,
    operand: &'static str,
    tensor: &Tensor,
    expected: impl Into<Shape>,
) -> Result<()> {
    let expected = expected.into();
    if tensor.shape() == expected {
        Ok(())
    } else {
        Err(wrong(operator, operand, tensor, expected.to_string()))
    }
}

/// Refuses a tensor whose number of dimensions is not `rank`, or with a dimension of size 0.
pub(crate) fn rank(
    operator: &'static str,
    operand: &'static str,
    tensor: &Tensor,
    rank: usize,
) -> Result<()> {
    if tensor.shape().dims().len() == rank && tensor.elements() > 0 {
        return Ok(());
    }
    Err(wrong(operator, operand, tensor, format!("{rank} dimensions, none of them 0")))
}

/// Refuses a tensor without elements, whose mean is undefined.
pub(crate) fn not_empty(operator: &'static str, operand: &'static str, tensor: &Tensor) -> Result<()> {
    if tensor.elements() > 0 {
        return Ok(());
    }
    Err(wrong(operator, operand, tensor, "at least one element".to_owned()))
}

/// Splits an operator's arrays into the first and the others.
pub(crate) fn first<'a>(
    operator: &'static str,
    operand: &'static str,
    arrays: &'a [Tensor],
) -> Result<(&'a Tensor, &'a [Tensor])> {
    let actual = [0].into();
    let expected = "one array or several".to_owned();
    arrays.split_first().ok_or(TensorError::Shape { operator, operand, actual, expected })
}

/// Returns the error for a tensor of a wrong shape.
pub(crate) fn wrong(
    operator: &'static str,
    operand: &'static str,
    tensor: &Tensor,
    expected: String,
) -> TensorError {
    TensorError::Shape { operator, operand, actual: tensor.shape(), expected }
}

/// Returns `shape` with its last dimension replaced by `columns`; a scalar becomes a vector.
pub(crate) fn with_columns(shape: Shape, columns: usize) -> Shape {
    match *shape.dims() {
        [a, _] => [a, columns].into(),
        [a, b, _] => [a, b, columns].into(),
        [a, b, c, _] => [a, b, c, columns].into(),
        _ => [columns].into(),
    }
}

/// Refuses an index that is not below `limit`.
pub(crate) fn indices(operator: &'static str, indices: &[u32], limit: usize) -> Result<()> {
    match indices.iter().find(|index| **index as usize >= limit) {
        Some(&index) => Err(TensorError::Index { operator, index, limit }),
        None => Ok(()),
    }
}

/// Refuses a tensor whose number of elements is not `expected`.
pub(crate) fn elements(
    operator: &'static str,
    operand: &'static str,
    tensor: &Tensor,
    expected: usize,
) -> Result<()> {
    if tensor.elements() == expected {
        return Ok(());
    }
    Err(wrong(operator, operand, tensor, format!("{expected} elements")))
}

/// Refuses a number of tensors other than `expected`.
pub(crate) fn count(operator: &'static str, actual: usize, expected: usize) -> Result<()> {
    if actual == expected {
        return Ok(());
    }
    Err(TensorError::Count { operator, actual, expected })
}
