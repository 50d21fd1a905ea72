//! Convolutions fused with a bias, ReLU and residual, which are applied before the result is rounded. Where
//! cuDNN has no fused algorithm, they are applied to the rounded result.

use device::{
    Backend, Category, Convolution, ConvolutionEpilogue, ConvolutionPass, ConvolutionShape, Function,
};

use super::biased::Biased;
use super::cuda::{FAMILY, WIDE};
use super::options::is_matmul;
use super::shapes::{allocate, matrix, output_sizes};
use super::unfolded::Unfolded;
use super::{cpu, workspace};
use crate::ops::{check, gpu, linear};
use crate::{Result, Tensor};

/// Computes ending(convolution + bias) for sizes that the caller has checked against the operands.
pub(in crate::ops) fn forward(
    operator: &'static str,
    x: &Tensor,
    weight: &Tensor,
    biased: Biased<'_>,
    shape: &ConvolutionShape,
) -> Result<Tensor> {
    let Biased { bias, ending } = biased;
    let dtype = check::computed(operator, &[("x", x), ("weight", weight), ("bias", bias)])?;
    check::shape(operator, "bias", bias, [shape.output[2]])?;
    if let Some(residual) = ending.residual() {
        check::computed(operator, &[("x", x), ("residual", residual)])?;
        check::shape(operator, "residual", residual, output_sizes(shape))?;
    }
    if is_matmul(shape) {
        return linear::ended(operator, x, &matrix(weight)?, bias, ending);
    }
    let output = allocate(operator, x, output_sizes(shape), Category::Activation)?;
    x.device().count_flops(shape.flops());
    if let Some(unfolded) = Unfolded::plan(operator, x.device(), dtype, shape) {
        unfolded.forward(x, weight, Some(biased), &output)?;
        return Ok(output);
    }
    let workspace = workspace::allocate(x.device(), operator, shape, (ConvolutionPass::Forward, dtype))?;
    match x.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => cpu::forward(shape, x, weight, Some(biased), &output, &workspace)?,
        Backend::Cuda => {
            let input = x.region();
            let workspace = workspace.region();
            let weight = weight.region();
            let pass = ConvolutionPass::Forward;
            let accumulate = false;
            let shape = *shape;
            let out = output.region();
            let call = Convolution { shape, pass, dtype, input, weight, output: out, workspace, accumulate };
            let residual = ending.residual().map(Tensor::region);
            let epilogue = ConvolutionEpilogue { bias: bias.region(), residual, relu: ending.has_relu() };
            if !x.device().convolve_then(&call, &epilogue)? {
                finish(operator, &output, biased)?;
            }
        }
    }
    Ok(output)
}

/// Overwrites y with ending(y + bias), on a GPU.
fn finish(operator: &'static str, y: &Tensor, Biased { bias, ending }: Biased<'_>) -> Result<()> {
    let count = gpu::word(operator, y.elements())?;
    let channels = gpu::word(operator, bias.elements())?;
    let residual = ending.residual();
    let arrays: Vec<_> = [y, bias].into_iter().chain(residual).collect();
    let vector = bias.elements().is_multiple_of(WIDE) && gpu::aligned(&arrays);
    let launch = y.device().kernel(Function::new(&FAMILY, "finish").with_dtype(y.dtype()));
    let launch = launch.write(y).read(bias).read(residual);
    let launch = launch.u32(channels).u32(count).u32(u32::from(ending.has_relu())).u32(u32::from(vector));
    let moved = gpu::bytes(&[y, y]) + residual.map_or(0, |residual| residual.bytes() as u64);
    let threads = if vector { count / WIDE as u32 } else { count };
    let blocks = [threads.div_ceil(gpu::THREADS), 1, 1];
    Ok(launch.cost(moved, 2 * u64::from(count)).launch(blocks, gpu::THREADS)?)
}
