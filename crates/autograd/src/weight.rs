//! Parameters as operands of operators: a tensor and the number of its use.

use device::{Category, DType, Request};
use tensor::{Tensor, ops};

/// One use of one parameter in a model, numbered in the order in which the model's layers were built. A
/// parameter with two uses has two numbers, each with its own gradient until the reduction over ranks is
/// done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UseId(pub u32);

/// The tensor of a parameter, at one of its uses. A frozen weight has no gradient.
#[derive(Clone, Debug)]
pub struct Weight {
    tensor: Tensor,
    use_id: Option<UseId>,
}

impl Weight {
    /// Returns `tensor` at the use `use_id`.
    pub fn new(tensor: Tensor, use_id: UseId) -> Self {
        Weight { tensor, use_id: Some(use_id) }
    }

    /// Returns `tensor` as a frozen weight.
    pub fn frozen(tensor: Tensor) -> Self {
        Weight { tensor, use_id: None }
    }

    /// The values.
    pub fn tensor(&self) -> &Tensor {
        &self.tensor
    }

    /// The values in `dtype`: the tensor itself if it has that type, else a copy. Operators take their
    /// weights in the type of their operands, and again in backward, so that a copy lives as long as one
    /// call: copies that are kept for backward would all exist at once. Errors: two half types, out of
    /// memory.
    pub fn values(&self, dtype: DType) -> tensor::Result<Tensor> {
        if self.tensor.dtype() == dtype {
            return Ok(self.tensor.clone());
        }
        let request = Request::new(Category::Workspace, "autocast");
        let copy = Tensor::empty(self.tensor.device(), self.tensor.shape(), dtype, request)?;
        ops::cast::into(&self.tensor, &copy)?;
        Ok(copy)
    }

    /// Number of the use; `None` for a frozen weight.
    pub fn use_id(&self) -> Option<UseId> {
        self.use_id
    }

    /// Returns whether backward computes the weight's gradient.
    pub fn is_trained(&self) -> bool {
        self.use_id.is_some()
    }
}
