//! Two-dimensional convolutions over channels-last images.
//!
//! The input is `[batch, height, width, in]`, the weight `[out, height, width, in / groups]`, the output
//! `[batch, height, width, out]`. A 1 × 1 kernel with stride 1 is a matmul and runs as one.

mod biased;
mod cpu;
pub(crate) mod cuda;
mod ended;
mod options;
mod shapes;
mod unfolded;
mod workspace;

use device::{Backend, Category, ConvolutionPass, Device, Request};

use super::activation::Activation;
use super::linear;
use super::{GradientTarget, check};
use crate::{Result, Shape, Tensor};
pub(super) use biased::Biased;
pub(super) use ended::forward as ended;
pub use options::ConvolutionOptions;
use options::{is_matmul, multiplies_pixels};
use shapes::{allocate, input_sizes, matrix, output_sizes};
use unfolded::Unfolded;

/// Convolves `x_nhwc` with `weight_ohwi`.
pub fn forward(x_nhwc: &Tensor, weight_ohwi: &Tensor, options: &ConvolutionOptions) -> Result<Tensor> {
    const OPERATOR: &str = "convolution.forward";
    let dtype = check::computed(OPERATOR, &[("x", x_nhwc), ("weight", weight_ohwi)])?;
    let shape = options.shape(OPERATOR, x_nhwc, weight_ohwi)?;
    if is_matmul(&shape) {
        return Ok(linear::forward(x_nhwc, &matrix(weight_ohwi)?, None, Activation::None)?.output);
    }
    let y_nhwc = allocate(OPERATOR, x_nhwc, output_sizes(&shape), Category::Activation)?;
    x_nhwc.device().count_flops(shape.flops());
    if let Some(unfolded) = Unfolded::plan(OPERATOR, x_nhwc.device(), dtype, &shape) {
        unfolded.forward(x_nhwc, weight_ohwi, None, &y_nhwc)?;
        return Ok(y_nhwc);
    }
    let workspace = workspace::allocate(x_nhwc.device(), OPERATOR, &shape, dtype)?;
    match x_nhwc.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => cpu::forward(&shape, x_nhwc, weight_ohwi, None, &y_nhwc, &workspace)?,
        Backend::Cuda => {
            let operands = cuda::Operands { x_nhwc, weight_ohwi, y_nhwc: &y_nhwc, workspace: &workspace };
            operands.run(shape, ConvolutionPass::Forward, false)?;
        }
    }
    Ok(y_nhwc)
}

/// Computes the gradient of an input of height and width `size` from the output's gradient `dy_nhwc`.
pub fn backward_input(
    dy_nhwc: &Tensor,
    weight_ohwi: &Tensor,
    size: [usize; 2],
    options: &ConvolutionOptions,
) -> Result<Tensor> {
    const OPERATOR: &str = "convolution.backward_input";
    let dtype = check::computed(OPERATOR, &[("dy", dy_nhwc), ("weight", weight_ohwi)])?;
    let shape = options.shape_of_gradient(OPERATOR, dy_nhwc, weight_ohwi, size)?;
    if is_matmul(&shape) {
        return linear::backward_input(dy_nhwc, &matrix(weight_ohwi)?);
    }
    let dx_nhwc = allocate(OPERATOR, dy_nhwc, input_sizes(&shape), Category::ActivationGradient)?;
    let workspace = workspace::allocate(dy_nhwc.device(), OPERATOR, &shape, dtype)?;
    dy_nhwc.device().count_flops(shape.flops());
    match dy_nhwc.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => cpu::backward_input(&shape, dy_nhwc, weight_ohwi, &dx_nhwc, &workspace)?,
        Backend::Cuda => {
            let operands =
                cuda::Operands { x_nhwc: &dx_nhwc, weight_ohwi, y_nhwc: dy_nhwc, workspace: &workspace };
            operands.run(shape, ConvolutionPass::BackwardInput, false)?;
        }
    }
    Ok(dx_nhwc)
}

/// Returns whether [`add_backward_input`] supports this convolution: on a GPU, if it is a matmul.
#[must_use]
pub fn can_add(device: &Device, weight_ohwi: Shape, options: &ConvolutionOptions) -> bool {
    let kernel = weight_ohwi.dims().get(1..3);
    device.is_cuda_like() && kernel.is_some_and(|kernel| multiplies_pixels(kernel, options))
}

/// Adds the gradient of the input to `dx_nhwc`, rounded once. Requires [`can_add`].
pub fn add_backward_input(
    dy_nhwc: &Tensor,
    weight_ohwi: &Tensor,
    dx_nhwc: &Tensor,
    options: &ConvolutionOptions,
) -> Result<()> {
    const OPERATOR: &str = "convolution.add_backward_input";
    check::computed(OPERATOR, &[("dy", dy_nhwc), ("weight", weight_ohwi), ("dx", dx_nhwc)])?;
    let shape = options.shape(OPERATOR, dx_nhwc, weight_ohwi)?;
    check::shape(OPERATOR, "dy", dy_nhwc, output_sizes(&shape))?;
    linear::add_backward_input(dy_nhwc, &matrix(weight_ohwi)?, dx_nhwc)
}

/// Computes the gradient of the weight from the output's gradient `dy_nhwc` and the input `x_nhwc`, and
/// adds it to `weight_ohwi` or overwrites it. The target is f32 or of the type of `dy_nhwc` and `x_nhwc`;
/// sums are in f32. On a GPU, cuDNN rounds the gradient of half types to their type even for an f32
/// target.
pub fn backward_weight(
    dy_nhwc: &Tensor,
    x_nhwc: &Tensor,
    weight_ohwi: &GradientTarget,
    options: &ConvolutionOptions,
) -> Result<()> {
    const OPERATOR: &str = "convolution.backward_weight";
    let dtype = check::computed(OPERATOR, &[("dy", dy_nhwc), ("x", x_nhwc)])?;
    check::targets(OPERATOR, dtype, &[("weight", weight_ohwi)])?;
    let shape = options.shape(OPERATOR, x_nhwc, &weight_ohwi.tensor)?;
    check::shape(OPERATOR, "dy", dy_nhwc, output_sizes(&shape))?;
    if is_matmul(&shape) {
        let target =
            GradientTarget { tensor: matrix(&weight_ohwi.tensor)?, accumulate: weight_ohwi.accumulate };
        return linear::backward_weight(dy_nhwc, x_nhwc, &target, None);
    }
    dy_nhwc.device().count_flops(shape.flops());
    if let Some(unfolded) = Unfolded::plan(OPERATOR, dy_nhwc.device(), dtype, &shape) {
        return unfolded.backward_weight(dy_nhwc, x_nhwc, weight_ohwi);
    }
    let workspace = workspace::allocate(dy_nhwc.device(), OPERATOR, &shape, dtype)?;
    let operands =
        cuda::Operands { x_nhwc, weight_ohwi: &weight_ohwi.tensor, y_nhwc: dy_nhwc, workspace: &workspace };
    if dy_nhwc.device().backend() == Backend::Cpu {
        return cpu::backward_weight(&shape, dy_nhwc, x_nhwc, weight_ohwi, &workspace);
    }
    if weight_ohwi.tensor.dtype() == dtype || !dy_nhwc.device().is_cuda_like() {
        return operands.run(shape, ConvolutionPass::BackwardWeight, weight_ohwi.accumulate);
    }
    // cuDNN writes the operands' type.
    let request = Request::new(Category::Workspace, OPERATOR);
    let gradient = &Tensor::empty(dy_nhwc.device(), weight_ohwi.tensor.shape(), dtype, request)?;
    cuda::Operands { weight_ohwi: gradient, ..operands }.run(
        shape,
        ConvolutionPass::BackwardWeight,
        false,
    )?;
    cuda::unpad(OPERATOR, gradient, shape.window(), weight_ohwi, shape.window())
}
