//! A convolution fused with the following batch norm with running statistics, without gradients.

use tensor::Tensor;
use tensor::ops::convolution::ConvolutionOptions;
use tensor::ops::folded_convolution::{self, Ending, Norm};

use super::batch_norm::{BatchNorm, Evaluated};
use super::named;
use super::norm_rule::residual_operands;
use crate::error::Result;
use crate::sharded::Var;
use crate::tape::Tape;
use crate::weight::Weight;

const OPERATOR: &str = "folded_convolution";

/// Convolves `x [batch, height, width, in]` with `weight [out, height, width, in / groups]` and normalises by
/// the running averages of mean and variance, `[out]` f32. Then applies ReLU if the norm has it; with a
/// residual, computes relu(normalised + residual). The output has no gradient.
pub fn folded_convolution(
    tape: &Tape,
    x: Var,
    residual: Option<Var>,
    (weight, options): (&Weight, ConvolutionOptions),
    (norm, [mean, variance]): (&BatchNorm, [&Tensor; 2]),
) -> Result<Var> {
    let (x, residual) = residual_operands(tape, OPERATOR, x, residual)?;
    tape.begin(OPERATOR)?;
    let ending = match &residual {
        Some(residual) => Ending::ResidualRelu(residual.tensor()),
        None if norm.relu => Ending::Relu,
        None => Ending::None,
    };
    let computed = || -> tensor::Result<Tensor> {
        // Stored values are rounded once, after scaling.
        let kernel = weight.stored()?;
        let scale = norm.weight.stored()?;
        let bias = norm.bias.stored()?;
        let norm = Norm { weight: &scale, bias: &bias, mean, variance, epsilon: norm.epsilon };
        folded_convolution::forward(x.tensor(), &kernel, norm, ending, &options)
    };
    tape.record_one(&[], named(OPERATOR, computed())?, || Evaluated { operator: OPERATOR })
}
