//! A parameter as the optimizer sees it.

use tensor::Tensor;

/// A parameter, or a shard of one.
#[derive(Clone, Debug)]
pub struct Slot {
    /// The parameter's name.
    pub name: String,
    /// The values, f32 or bf16, updated in place.
    pub weight: Tensor,
    /// Whether weight decay applies to the parameter.
    pub decay: bool,
}
