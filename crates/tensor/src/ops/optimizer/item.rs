//! A parameter as an update takes it.

use crate::Tensor;

/// One parameter, or a part of one, with its state; all tensors of as many elements.
#[derive(Clone, Copy, Debug)]
pub struct Item<'a> {
    /// The weight, f32, updated.
    pub weight: &'a Tensor,
    /// Its gradient: f32 or bf16, as those of all items.
    pub gradient: &'a Tensor,
    /// The tensors of [`UpdateRule::states`](super::UpdateRule::states), updated.
    pub states: &'a [Tensor],
    /// The bf16 copy of the weight that is computed with, written along.
    pub compute: Option<&'a Tensor>,
    /// Whether weight decay applies to it.
    pub decay: bool,
}
