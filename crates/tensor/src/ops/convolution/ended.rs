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
    x_nhwc: &Tensor,
    weight_ohwi: &Tensor,
    biased: Biased<'_>,
    shape: &ConvolutionShape,
) -> Result<Tensor> {
    let Biased { bias: bias_o, ending } = biased;
    let dtype = check::computed(operator, &[("x", x_nhwc), ("weight", weight_ohwi), ("bias", bias_o)])?;
    check::shape(operator, "bias", bias_o, [shape.output[2]])?;
    if let Some(residual) = ending.residual() {
        check::computed(operator, &[("x", x_nhwc), ("residual", residual)])?;
        check::shape(operator, "residual", residual, output_sizes(shape))?;
    }
    if is_matmul(shape) {
        return linear::ended(operator, x_nhwc, &matrix(weight_ohwi)?, bias_o, ending);
    }
    let y_nhwc = allocate(operator, x_nhwc, output_sizes(shape), Category::Activation)?;
    x_nhwc.device().count_flops(shape.flops());
    if let Some(unfolded) = Unfolded::plan(operator, x_nhwc.device(), dtype, shape) {
        unfolded.forward(x_nhwc, weight_ohwi, Some(biased), &y_nhwc)?;
        return Ok(y_nhwc);
    }
    let workspace = workspace::allocate(x_nhwc.device(), operator, shape, dtype)?;
    match x_nhwc.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => cpu::forward(shape, x_nhwc, weight_ohwi, Some(biased), &y_nhwc, &workspace)?,
        Backend::Cuda => {
            let input = x_nhwc.region();
            let workspace = workspace.region();
            let weight = weight_ohwi.region();
            let pass = ConvolutionPass::Forward;
            let accumulate = false;
            let shape = *shape;
            let out = y_nhwc.region();
            let call = Convolution { shape, pass, dtype, input, weight, output: out, workspace, accumulate };
            let residual = ending.residual().map(Tensor::region);
            let epilogue = ConvolutionEpilogue { bias: bias_o.region(), residual, relu: ending.has_relu() };
            if !x_nhwc.device().convolve_then(&call, &epilogue)? {
                finish(operator, &y_nhwc, biased)?;
            }
        }
    }
    Ok(y_nhwc)
}

/// Overwrites y with ending(y + bias), on a GPU.
fn finish(
    operator: &'static str,
    y_nhwc: &Tensor,
    Biased { bias: bias_o, ending }: Biased<'_>,
) -> Result<()> {
    let count = gpu::word(operator, y_nhwc.elements())?;
    let channels = gpu::word(operator, bias_o.elements())?;
    let residual = ending.residual();
    let arrays: Vec<_> = [y_nhwc, bias_o].into_iter().chain(residual).collect();
    let vector = bias_o.elements().is_multiple_of(WIDE) && gpu::aligned(&arrays);
    let launch = y_nhwc.device().kernel(Function::new(&FAMILY, "finish").with_dtype(y_nhwc.dtype()));
    let launch = launch.write(y_nhwc).read(bias_o).read(residual);
    let launch = launch.u32(channels).u32(count).u32(u32::from(ending.has_relu())).u32(u32::from(vector));
    let moved = gpu::bytes(&[y_nhwc, y_nhwc]) + residual.map_or(0, |residual| residual.bytes() as u64);
    let threads = if vector { count / WIDE as u32 } else { count };
    let blocks = [threads.div_ceil(gpu::THREADS), 1, 1];
    Ok(launch.cost(moved, 2 * u64::from(count)).launch(blocks, gpu::THREADS)?)
}
