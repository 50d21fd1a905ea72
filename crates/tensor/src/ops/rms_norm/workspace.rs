//! Workspace of RMS normalisation.

use crate::ops::columns;

/// Bytes of the gradient of the weight: partial sums.
pub(super) fn backward_weight(rows: usize, width: usize) -> usize {
    columns::workspace::bytes(rows, width)
}
