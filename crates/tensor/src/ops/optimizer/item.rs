//! Parameters as operands of an update.

use super::rounding::Stream;
use crate::Tensor;

/// One parameter, or a part of one, with its state; all tensors have the same number of elements.
#[derive(Clone, Copy, Debug)]
pub struct Item<'a> {
    /// The weight, f32, updated.
    pub weight: &'a Tensor,
    /// The weight's gradient: f32 or a half type, one type for all items.
    pub gradient: &'a Tensor,
    /// The tensors of [`UpdateRule::states`](super::UpdateRule::states), updated: all f32, or all bf16.
    pub states: &'a [Tensor],
    /// The copy of the weight in a half type for computing, updated too.
    pub compute: Option<&'a Tensor>,
    /// Whether weight decay applies to this parameter.
    pub decay: bool,
    /// Random numbers of the rounding of states in bf16.
    pub stream: Stream,
}
