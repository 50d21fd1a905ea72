//! Parameters and their states as operands of an update.

use device::DType;

use super::rounding::Stream;
use crate::Tensor;

/// One parameter, or a shard of one, with its state. All tensors have the same number of elements.
#[derive(Clone, Copy, Debug)]
pub struct Item<'a> {
    /// The weight, f32; updated. For [`MuonMomentum`](super::UpdateRule::MuonMomentum) the direction, bf16,
    /// which is written.
    pub weight: &'a Tensor,
    /// The weight's gradient: f32 or a half type, one type for all items.
    pub gradient: &'a Tensor,
    /// States in the order of [`UpdateRule::states`](super::UpdateRule::states), updated: all f32,
    /// all bf16, or all u8 (8-bit codes).
    pub states: &'a [Tensor],
    /// Largest magnitude of every block of each 8-bit state, f32, updated; empty for other states.
    pub maxima: &'a [Tensor],
    /// Copy of the weight in a half type for computing, updated; `None`: no copy.
    pub compute: Option<&'a Tensor>,
    /// Whether weight decay applies to this parameter.
    pub decay: bool,
    /// Random numbers for the stochastic rounding of bf16 states.
    pub stream: Stream,
}

/// Storage format of the states of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Storage {
    /// f32.
    Single,
    /// bf16, rounded stochastically.
    Rounded,
    /// 8-bit codes with the largest magnitude of each block.
    Quantised,
}

impl Item<'_> {
    /// Returns the storage format of the item's states.
    pub(super) fn storage(&self) -> Storage {
        match self.states.first().map(Tensor::dtype) {
            Some(DType::Bf16) => Storage::Rounded,
            Some(DType::U8) => Storage::Quantised,
            _ => Storage::Single,
        }
    }
}
