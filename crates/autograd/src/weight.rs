//! A parameter as an operator sees it: its tensor, and which use of it this is.

use tensor::Tensor;

/// One use of one parameter in a model, numbered in the order in which the model's layers were made.
/// A parameter that is used twice has two, each with a gradient of its own until all ranks are added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UseId(pub u32);

/// The tensor of a parameter, at one of its uses.
#[derive(Clone, Debug)]
pub struct Weight {
    tensor: Tensor,
    use_id: UseId,
}

impl Weight {
    /// `tensor` as used at `use_id`.
    pub fn new(tensor: Tensor, use_id: UseId) -> Self {
        Weight { tensor, use_id }
    }

    /// The values.
    pub fn tensor(&self) -> &Tensor {
        &self.tensor
    }

    /// Which use this is.
    pub fn use_id(&self) -> UseId {
        self.use_id
    }
}
