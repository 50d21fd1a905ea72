//! Rows padded to whole 16-byte vectors, for numbers of columns such as an odd vocabulary.

use super::check;
use crate::{Result, Tensor};

/// Multiple of elements to which rows are padded. Rows of every type then begin on 16 bytes, without which
/// matmuls on GPUs are several times slower.
const MULTIPLE: usize = 8;

/// Returns the length of a padded row of `columns` elements.
pub(super) fn padded(columns: usize) -> usize {
    columns.next_multiple_of(MULTIPLE)
}

/// Returns the number of the first columns that are whole vectors.
pub(super) fn whole(columns: usize) -> usize {
    columns / MULTIPLE * MULTIPLE
}

/// Refuses a tensor whose rows have neither `columns` elements nor the padding of [`padded`].
pub(super) fn check(
    operator: &'static str,
    operand: &'static str,
    tensor: &Tensor,
    columns: usize,
) -> Result<()> {
    match tensor.shape().columns() == padded(columns) {
        true => Ok(()),
        false => check::shape(operator, operand, tensor, check::with_columns(tensor.shape(), columns)),
    }
}
