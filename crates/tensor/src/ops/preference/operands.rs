//! Operands and results of preference losses.

use crate::Tensor;

/// Number of values in the result of a preference loss.
///
/// In order: the loss; the share of pairs whose chosen answer has the higher reward; the mean difference of
/// rewards; the mean rewards of chosen and of rejected answers; the part of the loss that is a mean over
/// targets.
pub const VALUES: usize = 6;

/// Losses and targets of sequences in pairs: chosen, then rejected.
#[derive(Clone, Copy, Debug)]
pub struct Sequences<'a> {
    /// −ln p of each row's target, f32 `[rows]`, one sequence after another. Rows whose target is ignored may
    /// have any value.
    pub losses: &'a Tensor,
    /// Target classes, u32, one per row.
    pub targets: &'a Tensor,
    /// Index in its sequence of the first row of each answer, u32 `[sequences]`. The answer ends with the
    /// sequence.
    pub answers: &'a Tensor,
}

/// Results of [`super::forward`].
#[derive(Clone, Debug)]
pub struct Output {
    /// The values of the loss, f32 `[VALUES]`, each times the scale.
    pub values: Tensor,
    /// Weight of each row's loss in the loss of the pairs, f32 `[rows]`.
    pub weights: Tensor,
}
