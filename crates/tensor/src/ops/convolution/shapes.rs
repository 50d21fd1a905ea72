//! Shapes of a convolution's operands.

use device::{Category, ConvolutionShape, Request};

use crate::{Result, Tensor};

/// Returns the weight of a 1 × 1 kernel as `[out, in]`.
pub(super) fn matrix(weight: &Tensor) -> Result<Tensor> {
    weight.reshape([weight.shape().dims().first().copied().unwrap_or(0), weight.shape().columns()])
}

pub(super) fn input_sizes(shape: &ConvolutionShape) -> [usize; 4] {
    let [height, width, channels] = shape.input;
    [shape.batch, height, width, channels]
}

pub(super) fn output_sizes(shape: &ConvolutionShape) -> [usize; 4] {
    let [height, width, channels] = shape.output;
    [shape.batch, height, width, channels]
}

/// Allocates an array with the type of `like`.
pub(super) fn allocate(
    operator: &'static str,
    like: &Tensor,
    sizes: [usize; 4],
    category: Category,
) -> Result<Tensor> {
    Tensor::empty(like.device(), sizes, like.dtype(), Request::new(category, operator))
}
