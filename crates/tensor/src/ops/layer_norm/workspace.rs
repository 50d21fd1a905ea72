//! Workspace of layer normalisation.

use crate::ops::columns;

/// Returns the bytes of the partial sums for the gradients of weight and bias.
pub(super) fn backward_weight(rows: usize, width: usize) -> usize {
    2 * columns::workspace::bytes(rows, width)
}
