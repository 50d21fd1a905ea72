//! Operands and results of losses of pairs.

use crate::Tensor;

/// Values of a loss: the loss, the share of pairs whose chosen answer has the higher reward, the mean
/// difference of rewards, the mean rewards of chosen and of rejected answers, and the part of the loss that
/// is a mean over targets.
pub const VALUES: usize = 6;

/// Sequences of pairs.
#[derive(Clone, Copy, Debug)]
pub struct Sequences<'a> {
    /// −ln p of each row's target, f32 `[rows]`, which are those of sequence after sequence; a row whose
    /// target is ignored has any value.
    pub losses: &'a Tensor,
    /// Classes, u32, one for each row.
    pub targets: &'a Tensor,
    /// The first row of each sequence's answer, counted from the sequence's first, u32 `[sequences]`. The
    /// answer ends with the sequence.
    pub answers: &'a Tensor,
}

/// Results of [`super::forward`].
#[derive(Clone, Debug)]
pub struct Output {
    /// f32 `[VALUES]`, each of them times the scale.
    pub values: Tensor,
    /// The weight of each row's loss in the loss of the pairs, f32 `[rows]`.
    pub weights: Tensor,
}
