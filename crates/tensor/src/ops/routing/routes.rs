//! The routes of rows to experts.

use crate::Tensor;

/// The experts that every row chose, and the order of rows by expert.
#[derive(Clone, Debug)]
pub struct Routes {
    /// The weight of each choice, `[rows, per_token]` f32.
    pub weights: Tensor,
    /// The expert of each choice, `[rows, per_token]` u32, by descending score.
    pub choices: Tensor,
    /// The slot that computes each choice, `[rows, per_token]` u32.
    pub slots: Tensor,
    /// The choice that each slot computes, `[slots]` u32: its index in `choices`, or [`NONE`] for a slot of
    /// zeros.
    pub sources: Tensor,
    /// The first slot of each expert, and the end of the last expert's, `[experts + 1]` u32.
    pub offsets: Tensor,
    /// Number of choices of each expert, `[experts]` u32.
    pub counts: Tensor,
    /// Number of choices of each expert, and of all, by rows that are tokens, `[experts + 1]` u32; `None` if
    /// all rows are tokens.
    pub token_counts: Option<Tensor>,
}

/// Source of a slot that computes no choice.
pub const NONE: u32 = u32::MAX;

impl Routes {
    /// Returns the number of slots of all experts.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.sources.elements()
    }

    /// Returns the number of experts.
    #[must_use]
    pub fn experts(&self) -> usize {
        self.offsets.elements().saturating_sub(1)
    }

    /// Returns the number of experts that each row chooses.
    #[must_use]
    pub fn per_token(&self) -> usize {
        self.choices.shape().columns()
    }

    /// Returns the number of rows that are routed.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.choices.shape().rows()
    }
}
