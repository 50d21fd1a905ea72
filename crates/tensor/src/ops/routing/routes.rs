//! The routes of rows to experts.

use crate::Tensor;

/// The experts of every row, and the order of rows by expert.
#[derive(Clone, Debug)]
pub struct Routes {
    /// The weight of each choice, `[rows, per_token]` f32.
    pub weights: Tensor,
    /// The expert of each choice, `[rows, per_token]` u32, by descending score.
    pub choices: Tensor,
    /// The row of experts that computes each choice, `[rows, per_token]` u32.
    pub slots: Tensor,
    /// The choice that each row of experts computes, `[slots]` u32: its index in `choices`, or [`NONE`] for a
    /// row of zeros.
    pub sources: Tensor,
    /// The first row of each expert and the end of the last one's, `[experts + 1]` u32.
    pub offsets: Tensor,
    /// The number of choices that are each expert, `[experts]` u32.
    pub counts: Tensor,
    /// The number of choices by rows that are tokens, of each expert and of all, `[experts + 1]` u32; `None`
    /// if all rows are.
    pub token_counts: Option<Tensor>,
}

/// The source of a row of experts that computes no choice.
pub const NONE: u32 = u32::MAX;

impl Routes {
    /// Number of rows of all experts.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.sources.elements()
    }

    /// Number of experts.
    #[must_use]
    pub fn experts(&self) -> usize {
        self.offsets.elements().saturating_sub(1)
    }

    /// Choices of a row.
    #[must_use]
    pub fn per_token(&self) -> usize {
        self.choices.shape().columns()
    }

    /// Number of rows that are routed.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.choices.shape().rows()
    }
}
