//! Workspace of layer normalisation.

use crate::ops::columns;

/// Bytes of the gradients of weight and bias: partial sums of each.
pub(super) fn backward_weight(rows: usize, width: usize) -> usize {
    2 * columns::workspace::bytes(rows, width)
}
