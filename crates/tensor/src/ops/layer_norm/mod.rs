//! Layer normalisation (Ba, Kiros, Hinton, *Layer Normalization*, 2016) over the innermost dimension, alone
//! or fused with the residual addition before it.
//!
//! y = (x − mean) · rstd · weight + bias, where the reciprocal standard deviation rstd is 1/√(variance +
//! epsilon) with the biased variance.

mod cpu;
pub(crate) mod cuda;
mod output;
mod workspace;

use device::Backend;

pub use super::row_norm::Settings;
use super::row_norm::cpu::Outputs;
use super::row_norm::{self, check_operands, check_saved};
use super::{GradientTarget, check};
use crate::{Result, Tensor};
pub use output::Output;

/// Normalises the rows of `x [.., width]`. `weight` and the optional `bias` are `[width]`; all have one type.
///
/// # Errors
/// Shapes or types that do not agree, rows without elements, out of memory.
pub fn forward(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    settings: impl Into<Settings>,
) -> Result<Output> {
    const OPERATOR: &str = "layer_norm.forward";
    check_operands(OPERATOR, x, &parameters(weight, bias))?;
    normalise(OPERATOR, x, None, weight, bias, settings.into())
}

/// Computes `sum = residual + branch` and its normalised rows. The sum is rounded to its type before it is
/// normalised, so results are the same if a pipeline is cut between the two. Both inputs are `[.., width]`;
/// all operands have one type.
pub fn forward_residual(
    residual: &Tensor,
    branch: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    settings: impl Into<Settings>,
) -> Result<(Tensor, Output)> {
    const OPERATOR: &str = "layer_norm.forward_residual";
    let dtype = check_operands(OPERATOR, residual, &parameters(weight, bias))?;
    let sum = row_norm::allocate_sum(OPERATOR, residual, branch, dtype)?;
    let result = normalise(OPERATOR, residual, Some((branch, &sum)), weight, bias, settings.into())?;
    Ok((sum, result))
}

/// Normalises the rows of `x`. With `residual` (branch, sum), stores x + branch in `sum` and normalises that.
fn normalise(
    operator: &'static str,
    x: &Tensor,
    residual: Option<(&Tensor, &Tensor)>,
    weight: &Tensor,
    bias: Option<&Tensor>,
    settings: Settings,
) -> Result<Output> {
    let output = row_norm::allocate_output(operator, x, settings.measures)?;
    let statistic = || row_norm::allocate_statistic(operator, x);
    let result = Output { output, mean: statistic()?, rstd: statistic()? };
    match x.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => {
            let x = row_norm::sum_on_host(x, residual)?.values()?;
            let weight = weight.values()?;
            let bias = bias.map(Tensor::values).transpose()?;
            let Output { output, mean, rstd } = &result;
            let (mut output, mut mean, mut rstd) =
                (output.values_mut()?, mean.values_mut()?, rstd.values_mut()?);
            let outputs = Outputs { output: &mut output, statistics: [&mut mean, &mut rstd] };
            cpu::forward(
                &x,
                cpu::Affine { weight: &weight, bias: bias.as_deref(), epsilon: settings.epsilon },
                outputs,
            );
        }
        Backend::Cuda => {
            cuda::forward(operator, x, residual, cuda::Affine { weight, bias, settings }, &result)?;
        }
    }
    Ok(result)
}

/// Computes the gradient of the input `x` from the output's gradient `dy`. Adds `dsum` if present: the
/// gradient that other readers of the residual sum contribute. All are `[.., width]`; `mean` and `rstd` are
/// `[rows]`. With `measures`, a GPU also measures the result's largest magnitude.
pub fn backward_input(
    dy: &Tensor,
    dsum: Option<&Tensor>,
    x: &Tensor,
    weight: &Tensor,
    mean: &Tensor,
    rstd: &Tensor,
    measures: bool,
) -> Result<Tensor> {
    const OPERATOR: &str = "layer_norm.backward_input";
    let dtype = check_operands(OPERATOR, x, &[("weight", weight)])?;
    check_saved(OPERATOR, dy, x, &[("mean", mean), ("rstd", rstd)])?;
    let dx = row_norm::allocate_gradient(OPERATOR, x, dsum, dtype, measures)?;
    match x.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => {
            let x = x.values()?;
            let mean = mean.values()?;
            let rstd = rstd.values()?;
            let dsum = dsum.map(Tensor::values).transpose()?;
            let saved = cpu::Saved { x: &x, mean: &mean, rstd: &rstd };
            cpu::backward_input(
                &dy.values()?,
                dsum.as_deref(),
                saved,
                &weight.values()?,
                &mut dx.values_mut()?,
            );
        }
        Backend::Cuda => {
            let saved = cuda::Saved { x, mean, rstd };
            cuda::backward_input(OPERATOR, dy, dsum, saved, weight, &dx)?;
        }
    }
    Ok(dx)
}

/// Computes the gradients of the parameters: weight `[width]` (+)= Σ over rows of dy · (x − mean) · rstd, and
/// if there is a bias, bias `[width]` (+)= Σ over rows of dy. The targets are both f32 or both of the type of
/// `dy` and `x`. Sums are in f32 and rounded once.
pub fn backward_weight(
    dy: &Tensor,
    x: &Tensor,
    mean: &Tensor,
    rstd: &Tensor,
    weight: &GradientTarget,
    bias: Option<&GradientTarget>,
) -> Result<()> {
    const OPERATOR: &str = "layer_norm.backward_weight";
    check::not_empty(OPERATOR, "x", x)?;
    check_saved(OPERATOR, dy, x, &[("mean", mean), ("rstd", rstd)])?;
    let targets: Vec<_> =
        [Some(("weight", weight)), bias.map(|bias| ("bias", bias))].into_iter().flatten().collect();
    check::targets(OPERATOR, x.dtype(), &targets)?;
    let rows = x.shape().rows();
    let width = x.shape().columns();
    for (name, target) in targets {
        check::shape(OPERATOR, name, &target.tensor, [width])?;
    }
    let bytes = workspace::backward_weight(rows, width);
    let workspace = Tensor::workspace(x.device(), OPERATOR, bytes)?;
    match x.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => {
            let dy = dy.values()?;
            let x = x.values()?;
            let mean = mean.values()?;
            let rstd = rstd.values()?;
            let saved = cpu::Saved { x: &x, mean: &mean, rstd: &rstd };
            cpu::backward_weight(&dy, saved, &mut weight.tensor.values_mut()?, weight.accumulate);
            if let Some(bias) = bias {
                cpu::backward_bias(&dy, &mut bias.tensor.values_mut()?, bias.accumulate, mean.len());
            }
        }
        Backend::Cuda => {
            let saved = cuda::Saved { x, mean, rstd };
            cuda::backward_weight(OPERATOR, dy, saved, &workspace, weight, bias)?;
        }
    }
    Ok(())
}

fn parameters<'a>(weight: &'a Tensor, bias: Option<&'a Tensor>) -> Vec<(&'static str, &'a Tensor)> {
    std::iter::once(("weight", weight)).chain(bias.map(|bias| ("bias", bias))).collect()
}
