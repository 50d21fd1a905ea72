//! Statistics of the scores, which forward leaves for backward.

use crate::{Result, Tensor};

/// Statistics of the scores.
#[derive(Clone, Debug)]
pub struct Statistics {
    /// f32 `[3, rows]`: the largest score of each row, Σ e^(score − largest), and the row's loss.
    pub rows: Tensor,
    /// The divisor of the mean, a u32: the number of rows that are not ignored, unless another is required.
    pub counted: Tensor,
    /// The weight of each row's loss, f32 `[rows]`; `None` if the loss is a mean.
    pub weights: Option<Tensor>,
}

impl Statistics {
    /// Returns statistics of `rows` whose losses have the `weights` that another operator computed; without
    /// any, they have no gradient.
    pub fn weighted(rows: Tensor, weights: Option<Tensor>) -> Result<Self> {
        let counted = Tensor::workspace(rows.device(), "cross_entropy.weighted", 0)?;
        Ok(Statistics { rows, counted, weights })
    }

    /// The losses of `rows`, f32 `[3, rows]` ([`Statistics::rows`]).
    pub fn losses_of(rows: &Tensor) -> Result<Tensor> {
        let count = rows.shape().columns();
        rows.view(2 * count, [count])
    }

    /// The largest scores, the sums, or the losses: part 0, 1 or 2.
    pub(super) fn part(&self, part: usize) -> Result<Tensor> {
        let rows = self.rows.shape().columns();
        self.rows.view(part * rows, [rows])
    }
}
