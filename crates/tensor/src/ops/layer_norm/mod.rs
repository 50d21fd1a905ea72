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

/// Normalises the rows of `x_td [.., width]`. `weight_d` and the optional `bias_d` are `[width]`; all have
/// one type.
///
/// # Errors
/// Shapes or types that do not agree, rows without elements, out of memory.
pub fn forward(
    x_td: &Tensor,
    weight_d: &Tensor,
    bias_d: Option<&Tensor>,
    settings: impl Into<Settings>,
) -> Result<Output> {
    const OPERATOR: &str = "layer_norm.forward";
    check_operands(OPERATOR, x_td, &parameters(weight_d, bias_d))?;
    normalise(OPERATOR, x_td, None, weight_d, bias_d, settings.into())
}

/// Computes `sum_td = residual + branch` and its normalised rows. The sum is rounded to its type before it is
/// normalised, so results are the same if a pipeline is cut between the two. Both inputs are `[.., width]`;
/// all operands have one type.
pub fn forward_residual(
    residual_td: &Tensor,
    branch_td: &Tensor,
    weight_d: &Tensor,
    bias_d: Option<&Tensor>,
    settings: impl Into<Settings>,
) -> Result<(Tensor, Output)> {
    const OPERATOR: &str = "layer_norm.forward_residual";
    let dtype = check_operands(OPERATOR, residual_td, &parameters(weight_d, bias_d))?;
    let sum_td = row_norm::allocate_sum(OPERATOR, residual_td, branch_td, dtype)?;
    let result =
        normalise(OPERATOR, residual_td, Some((branch_td, &sum_td)), weight_d, bias_d, settings.into())?;
    Ok((sum_td, result))
}

/// Normalises the rows of `x_td`. With `residual` (branch, sum), stores x + branch in `sum_td` and normalises
/// that.
fn normalise(
    operator: &'static str,
    x_td: &Tensor,
    residual: Option<(&Tensor, &Tensor)>,
    weight_d: &Tensor,
    bias_d: Option<&Tensor>,
    settings: Settings,
) -> Result<Output> {
    let output_td = row_norm::allocate_output(operator, x_td, settings.measures)?;
    let statistic = || row_norm::allocate_statistic(operator, x_td);
    let result = Output { output: output_td, mean: statistic()?, rstd: statistic()? };
    match x_td.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => {
            let x_td = row_norm::sum_on_host(x_td, residual)?.values()?;
            let weight_d = weight_d.values()?;
            let bias_d = bias_d.map(Tensor::values).transpose()?;
            let Output { output: output_td, mean: mean_t, rstd: rstd_t } = &result;
            let (mut output_td, mut mean_t, mut rstd_t) =
                (output_td.values_mut()?, mean_t.values_mut()?, rstd_t.values_mut()?);
            let outputs = Outputs { output: &mut output_td, statistics: [&mut mean_t, &mut rstd_t] };
            cpu::forward(
                &x_td,
                cpu::Affine { weight: &weight_d, bias: bias_d.as_deref(), epsilon: settings.epsilon },
                outputs,
            );
        }
        Backend::Cuda => {
            cuda::forward(
                operator,
                x_td,
                residual,
                cuda::Affine { weight: weight_d, bias: bias_d, settings },
                &result,
            )?;
        }
    }
    Ok(result)
}

/// Computes the gradient of the input `x_td` from the output's gradient `dy_td`. Adds `dsum_td` if present:
/// the gradient that other readers of the residual sum contribute. All are `[.., width]`; `mean_t` and
/// `rstd_t` are `[rows]`. With `measures`, a GPU also measures the result's largest magnitude.
pub fn backward_input(
    dy_td: &Tensor,
    dsum_td: Option<&Tensor>,
    x_td: &Tensor,
    weight_d: &Tensor,
    mean_t: &Tensor,
    rstd_t: &Tensor,
    measures: bool,
) -> Result<Tensor> {
    const OPERATOR: &str = "layer_norm.backward_input";
    let dtype = check_operands(OPERATOR, x_td, &[("weight", weight_d)])?;
    check_saved(OPERATOR, dy_td, x_td, &[("mean", mean_t), ("rstd", rstd_t)])?;
    let dx_td = row_norm::allocate_gradient(OPERATOR, x_td, dsum_td, dtype, measures)?;
    match x_td.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => {
            let x_td = x_td.values()?;
            let mean_t = mean_t.values()?;
            let rstd_t = rstd_t.values()?;
            let dsum_td = dsum_td.map(Tensor::values).transpose()?;
            let saved = cpu::Saved { x: &x_td, mean: &mean_t, rstd: &rstd_t };
            cpu::backward_input(
                &dy_td.values()?,
                dsum_td.as_deref(),
                saved,
                &weight_d.values()?,
                &mut dx_td.values_mut()?,
            );
        }
        Backend::Cuda => {
            let saved = cuda::Saved { x: x_td, mean: mean_t, rstd: rstd_t };
            cuda::backward_input(OPERATOR, dy_td, dsum_td, saved, weight_d, &dx_td)?;
        }
    }
    Ok(dx_td)
}

/// Computes the gradients of the parameters: weight `[width]` (+)= Σ over rows of dy · (x − mean) · rstd, and
/// if there is a bias, bias `[width]` (+)= Σ over rows of dy. The targets are both f32 or both of the type of
/// `dy_td` and `x_td`. Sums are in f32 and rounded once.
pub fn backward_weight(
    dy_td: &Tensor,
    x_td: &Tensor,
    mean_t: &Tensor,
    rstd_t: &Tensor,
    weight: &GradientTarget,
    bias: Option<&GradientTarget>,
) -> Result<()> {
    const OPERATOR: &str = "layer_norm.backward_weight";
    check::not_empty(OPERATOR, "x", x_td)?;
    check_saved(OPERATOR, dy_td, x_td, &[("mean", mean_t), ("rstd", rstd_t)])?;
    let targets: Vec<_> =
        [Some(("weight", weight)), bias.map(|bias| ("bias", bias))].into_iter().flatten().collect();
    check::targets(OPERATOR, x_td.dtype(), &targets)?;
    let rows = x_td.shape().rows();
    let width = x_td.shape().columns();
    for (name, target) in targets {
        check::shape(OPERATOR, name, &target.tensor, [width])?;
    }
    let bytes = workspace::backward_weight(rows, width);
    let workspace = Tensor::workspace(x_td.device(), OPERATOR, bytes)?;
    match x_td.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => {
            let dy_td = dy_td.values()?;
            let x_td = x_td.values()?;
            let mean_t = mean_t.values()?;
            let rstd_t = rstd_t.values()?;
            let saved = cpu::Saved { x: &x_td, mean: &mean_t, rstd: &rstd_t };
            cpu::backward_weight(&dy_td, saved, &mut weight.tensor.values_mut()?, weight.accumulate);
            if let Some(bias) = bias {
                cpu::backward_bias(&dy_td, &mut bias.tensor.values_mut()?, bias.accumulate, mean_t.len());
            }
        }
        Backend::Cuda => {
            let saved = cuda::Saved { x: x_td, mean: mean_t, rstd: rstd_t };
            cuda::backward_weight(OPERATOR, dy_td, saved, &workspace, weight, bias)?;
        }
    }
    Ok(())
}

fn parameters<'a>(weight_d: &'a Tensor, bias_d: Option<&'a Tensor>) -> Vec<(&'static str, &'a Tensor)> {
    std::iter::once(("weight", weight_d)).chain(bias_d.map(|bias| ("bias", bias))).collect()
}
