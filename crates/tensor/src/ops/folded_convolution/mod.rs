//! A convolution and the batch norm after it with running statistics, folded into one convolution, for passes
//! without gradients.
//!
//! For each output channel, scale = the norm's weight / √(variance + epsilon). The convolution's weight is
//! multiplied by scale, and its bias is the norm's bias − mean · scale. Both are computed in f32 and rounded
//! once to the type of the input.

mod cpu;
pub(crate) mod cuda;
mod norm;

use device::{Backend, Category, DType, Request};

use super::check;
use super::convolution::{self, Biased, ConvolutionOptions};
pub use super::linear::Ending;
use crate::{Result, Tensor, TensorError};
pub use norm::Norm;

const OPERATOR: &str = "folded_convolution.forward";

/// Computes ending(norm(conv(x, weight))). `weight` is f32 or of the type of `x`.
pub fn forward(
    x: &Tensor,
    weight: &Tensor,
    norm: Norm<'_>,
    ending: Ending<'_>,
    options: &ConvolutionOptions,
) -> Result<Tensor> {
    let dtype = check::computed(OPERATOR, &[("x", x)])?;
    let shape = options.shape(OPERATOR, x, weight)?;
    check_norm(weight, dtype, norm)?;
    let empty = |sizes: crate::Shape| {
        Tensor::empty(x.device(), sizes, dtype, Request::new(Category::Workspace, OPERATOR))
    };
    let folded = empty(weight.shape())?;
    let bias = empty([shape.output[2]].into())?;
    match x.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => cpu::fold(weight, norm, &folded, &bias)?,
        Backend::Cuda => cuda::fold(OPERATOR, weight, norm, &folded, &bias)?,
    }
    convolution::ended(OPERATOR, x, &folded, Biased { bias: &bias, ending }, &shape)
}

fn check_norm(weight: &Tensor, dtype: DType, norm: Norm<'_>) -> Result<()> {
    if weight.dtype() != DType::F32 && weight.dtype() != dtype {
        let operand = "weight";
        let actual = weight.dtype();
        return Err(TensorError::Unsupported {
            operator: OPERATOR,
            operand,
            actual,
            supported: &[DType::F32],
        });
    }
    let Norm { weight: scale, bias, mean, variance, .. } = norm;
    check::computed(OPERATOR, &[("weight", weight), ("norm's weight", scale), ("norm's bias", bias)])?;
    check::f32s(OPERATOR, &[("mean", mean), ("variance", variance)])?;
    let channels = weight.shape().dims()[0];
    [("norm's weight", scale), ("norm's bias", bias), ("mean", mean), ("variance", variance)]
        .into_iter()
        .try_for_each(|(name, vector)| check::shape(OPERATOR, name, vector, [channels]))
}
