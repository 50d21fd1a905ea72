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

/// Convolves `x` with `weight`.
pub fn forward(x: &Tensor, weight: &Tensor, options: &ConvolutionOptions) -> Result<Tensor> {
    const OPERATOR: &str = "convolution.forward";
    let dtype = check::computed(OPERATOR, &[("x", x), ("weight", weight)])?;
    let shape = options.shape(OPERATOR, x, weight)?;
    if is_matmul(&shape) {
        return Ok(linear::forward(x, &matrix(weight)?, None, Activation::None)?.output);
    }
    let output = allocate(OPERATOR, x, output_sizes(&shape), Category::Activation)?;
    x.device().count_flops(shape.flops());
    if let Some(unfolded) = Unfolded::plan(OPERATOR, x.device(), dtype, &shape) {
        unfolded.forward(x, weight, None, &output)?;
        return Ok(output);
    }
    let workspace = workspace::allocate(x.device(), OPERATOR, &shape, (ConvolutionPass::Forward, dtype))?;
    match x.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => cpu::forward(&shape, x, weight, None, &output, &workspace)?,
        Backend::Cuda => {
            let operands = cuda::Operands { x, weight, y: &output, workspace: &workspace };
            operands.run(shape, ConvolutionPass::Forward, false)?;
        }
    }
    Ok(output)
}

/// Computes the gradient of an input of height and width `size` from the output's gradient `dy`.
pub fn backward_input(
    dy: &Tensor,
    weight: &Tensor,
    size: [usize; 2],
    options: &ConvolutionOptions,
) -> Result<Tensor> {
    const OPERATOR: &str = "convolution.backward_input";
    let dtype = check::computed(OPERATOR, &[("dy", dy), ("weight", weight)])?;
    let shape = options.shape_of_gradient(OPERATOR, dy, weight, size)?;
    if is_matmul(&shape) {
        return linear::backward_input(dy, &matrix(weight)?);
    }
    let dx = allocate(OPERATOR, dy, input_sizes(&shape), Category::ActivationGradient)?;
    let workspace =
        workspace::allocate(dy.device(), OPERATOR, &shape, (ConvolutionPass::BackwardInput, dtype))?;
    dy.device().count_flops(shape.flops());
    match dy.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => cpu::backward_input(&shape, dy, weight, &dx, &workspace)?,
        Backend::Cuda => {
            let operands = cuda::Operands { x: &dx, weight, y: dy, workspace: &workspace };
            operands.run(shape, ConvolutionPass::BackwardInput, false)?;
        }
    }
    Ok(dx)
}

/// Returns whether [`add_backward_input`] supports this convolution: on a GPU, if it is a matmul.
#[must_use]
pub fn can_add(device: &Device, weight: Shape, options: &ConvolutionOptions) -> bool {
    let kernel = weight.dims().get(1..3);
    device.is_cuda_like() && kernel.is_some_and(|kernel| multiplies_pixels(kernel, options))
}

/// Adds the gradient of the input to `dx`, rounded once. Requires [`can_add`].
pub fn add_backward_input(
    dy: &Tensor,
    weight: &Tensor,
    dx: &Tensor,
    options: &ConvolutionOptions,
) -> Result<()> {
    const OPERATOR: &str = "convolution.add_backward_input";
    check::computed(OPERATOR, &[("dy", dy), ("weight", weight), ("dx", dx)])?;
    let shape = options.shape(OPERATOR, dx, weight)?;
    check::shape(OPERATOR, "dy", dy, output_sizes(&shape))?;
    linear::add_backward_input(dy, &matrix(weight)?, dx)
}

/// Computes the gradient of the weight from the output's gradient `dy` and the input `x`, and adds it to
/// `weight` or overwrites it. The target is f32 or of the type of `dy` and `x`; sums are in f32. On a GPU,
/// cuDNN rounds the gradient of half types to their type even for an f32 target.
pub fn backward_weight(
    dy: &Tensor,
    x: &Tensor,
    weight: &GradientTarget,
    options: &ConvolutionOptions,
) -> Result<()> {
    const OPERATOR: &str = "convolution.backward_weight";
    let dtype = check::computed(OPERATOR, &[("dy", dy), ("x", x)])?;
    check::targets(OPERATOR, dtype, &[("weight", weight)])?;
    let shape = options.shape(OPERATOR, x, &weight.tensor)?;
    check::shape(OPERATOR, "dy", dy, output_sizes(&shape))?;
    if is_matmul(&shape) {
        let target = GradientTarget { tensor: matrix(&weight.tensor)?, accumulate: weight.accumulate };
        return linear::backward_weight(dy, x, &target, None);
    }
    dy.device().count_flops(shape.flops());
    if let Some(unfolded) = Unfolded::plan(OPERATOR, dy.device(), dtype, &shape) {
        return unfolded.backward_weight(dy, x, weight);
    }
    let workspace =
        workspace::allocate(dy.device(), OPERATOR, &shape, (ConvolutionPass::BackwardWeight, dtype))?;
    let operands = cuda::Operands { x, weight: &weight.tensor, y: dy, workspace: &workspace };
    if dy.device().backend() == Backend::Cpu {
        return cpu::backward_weight(&shape, dy, x, weight, &workspace);
    }
    if weight.tensor.dtype() == dtype || !dy.device().is_cuda_like() {
        return operands.run(shape, ConvolutionPass::BackwardWeight, weight.accumulate);
    }
    // cuDNN writes the operands' type.
    let request = Request::new(Category::Workspace, OPERATOR);
    let gradient = &Tensor::empty(dy.device(), weight.tensor.shape(), dtype, request)?;
    cuda::Operands { weight: gradient, ..operands }.run(shape, ConvolutionPass::BackwardWeight, false)?;
    cuda::unpad(OPERATOR, gradient, shape.window(), weight, shape.window())
}
