//! The tensor that a pipeline stage sends to the next.

use device::DType;
use tensor::Shape;

/// The tensor sent from a stage to the next. Its gradient, sent back, has the same shape and dtype.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageBoundary {
    /// Shape of one micro-batch.
    pub shape: Shape,
    /// Dtype of the tensor and of its gradient in training.
    pub dtype: DType,
    /// Dtype in evaluation, which may differ because evaluation fuses layers.
    pub evaluated_dtype: DType,
    /// Whether the gradient is sent back, because an earlier stage has trained parameters.
    pub gradient: bool,
}
