//! Scores of classes whose rows may be padded.

use crate::Tensor;

/// Scores `[.., classes]`, or with the rows of [`forward_padded`](crate::ops::linear::forward_padded).
#[derive(Clone, Debug)]
pub struct Scores {
    /// The scores. Columns from `classes` on are neither read nor written.
    pub tensor: Tensor,
    /// Number of classes.
    pub classes: usize,
}

impl From<Tensor> for Scores {
    fn from(tensor: Tensor) -> Self {
        Scores { classes: tensor.shape().columns(), tensor }
    }
}
