//! Parameters as operands of an update.

use device::DType;

use super::rounding::Stream;
use crate::Tensor;

/// One parameter, or a part of one, with its state; all tensors have the same number of elements.
#[derive(Clone, Copy, Debug)]
pub struct Item<'a> {
    /// The weight, f32, updated.
    pub weight: &'a Tensor,
    /// The weight's gradient: f32 or a half type, one type for all items.
    pub gradient: &'a Tensor,
    /// The tensors of [`UpdateRule::states`](super::UpdateRule::states), updated: all f32, all bf16, or all
    /// u8, which are codes of 8 bits.
    pub states: &'a [Tensor],
    /// The largest magnitude of every block of each state in u8, f32, updated; none for other states.
    pub maxima: &'a [Tensor],
    /// The copy of the weight in a half type for computing, updated too.
    pub compute: Option<&'a Tensor>,
    /// Whether weight decay applies to this parameter.
    pub decay: bool,
    /// Random numbers of the rounding of states in bf16.
    pub stream: Stream,
}

/// How the states of a launch are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Storage {
    /// In f32.
    Single,
    /// In bf16, rounded stochastically.
    Rounded,
    /// In 8 bits with the maxima of blocks.
    Quantised,
}

impl Item<'_> {
    /// How the item's states are kept.
    pub(super) fn storage(&self) -> Storage {
        match self.states.first().map(Tensor::dtype) {
            Some(DType::Bf16) => Storage::Rounded,
            Some(DType::U8) => Storage::Quantised,
            _ => Storage::Single,
        }
    }
}
