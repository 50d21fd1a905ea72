//! Statistics of the rows' scores, which forward saves for backward.

use crate::{Result, Tensor};

/// Statistics of the rows' scores.
#[derive(Clone, Debug)]
pub struct Statistics {
    /// f32 `[3, rows]`: the largest score of each row, Σ e^(score − largest), and the row's loss.
    pub rows: Tensor,
    /// Divisor of the mean, one u32: the number of rows that are not ignored, or a count of the caller's.
    pub counted: Tensor,
    /// The weight of each row's loss, f32 `[rows]`; `None` if the loss is a mean.
    pub weights: Option<Tensor>,
}

impl Statistics {
    /// Returns statistics of `rows` whose losses have `weights`, computed by another operator. Without
    /// weights there is no gradient.
    pub fn weighted(rows: Tensor, weights: Option<Tensor>) -> Result<Self> {
        let counted = Tensor::workspace(rows.device(), "cross_entropy.weighted", 0)?;
        Ok(Statistics { rows, counted, weights })
    }

    /// Returns the losses in `rows`, f32 `[3, rows]` ([`Statistics::rows`]).
    pub fn losses_of(rows: &Tensor) -> Result<Tensor> {
        let count = rows.shape().columns();
        rows.view(2 * count, [count])
    }

    /// Returns one statistic of all rows: largest scores (0), sums of exponentials (1) or losses (2).
    pub(super) fn part(&self, part: usize) -> Result<Tensor> {
        let rows = self.rows.shape().columns();
        self.rows.view(part * rows, [rows])
    }
}
