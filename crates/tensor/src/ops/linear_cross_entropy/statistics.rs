//! Statistics of the scores, which forward leaves for backward.

use crate::{Result, Tensor};

/// Statistics of the scores.
#[derive(Clone, Debug)]
pub struct Statistics {
    /// f32 `[3, rows]`: the largest score of each row, Σ e^(score − largest), and the row's loss.
    pub rows: Tensor,
    /// The number of rows that are not ignored, a u32.
    pub counted: Tensor,
    /// The weight of each row's loss, f32 `[rows]`; `None` if the loss is `scale` times the mean over rows
    /// that are not ignored.
    pub weights: Option<Tensor>,
}

impl Statistics {
    /// The rows' losses.
    ///
    /// # Errors
    /// None.
    pub fn losses(&self) -> Result<Tensor> {
        self.part(2)
    }

    /// The largest scores, the sums, or the losses: part 0, 1 or 2.
    pub(super) fn part(&self, part: usize) -> Result<Tensor> {
        let rows = self.rows.shape().columns();
        self.rows.view(part * rows, [rows])
    }
}
