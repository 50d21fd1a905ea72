//! RMS normalisation (Zhang and Sennrich, *Root Mean Square Layer Normalization*, 2019) over the innermost
//! dimension, alone or fused with the residual addition before it.
//!
//! y = x · rstd · weight, where rstd is 1/√(mean of x² + epsilon).

pub(super) mod cpu;
pub(crate) mod cuda;
mod output;

use device::Backend;

pub use super::row_norm::Settings;
use super::row_norm::cpu::Outputs;
use super::row_norm::{self, check_operands, check_saved};
use super::{GradientTarget, check, columns};
use crate::{Result, Tensor};
pub use output::Output;

/// Normalises the rows of `x_td [.., width]`. `weight_d` is `[width]`, of the type of `x_td`.
///
/// # Errors
/// Shapes or types that do not agree, rows without elements, out of memory.
pub fn forward(x_td: &Tensor, weight_d: &Tensor, settings: impl Into<Settings>) -> Result<Output> {
    const OPERATOR: &str = "rms_norm.forward";
    check_operands(OPERATOR, x_td, &[("weight", weight_d)])?;
    normalise(OPERATOR, x_td, None, weight_d, settings.into())
}

/// Computes `sum_td = residual + branch` and its normalised rows. The sum is rounded to its type before it is
/// normalised, so results are the same if a pipeline is cut between the two. Both inputs are `[.., width]`;
/// all operands have one type.
pub fn forward_residual(
    residual_td: &Tensor,
    branch_td: &Tensor,
    weight_d: &Tensor,
    settings: impl Into<Settings>,
) -> Result<(Tensor, Output)> {
    const OPERATOR: &str = "rms_norm.forward_residual";
    let dtype = check_operands(OPERATOR, residual_td, &[("weight", weight_d)])?;
    let sum_td = row_norm::allocate_sum(OPERATOR, residual_td, branch_td, dtype)?;
    let result = normalise(OPERATOR, residual_td, Some((branch_td, &sum_td)), weight_d, settings.into())?;
    Ok((sum_td, result))
}

/// Normalises the rows of `x_td`. With `residual` (branch, sum), stores x + branch in `sum_td` and normalises
/// that.
fn normalise(
    operator: &'static str,
    x_td: &Tensor,
    residual: Option<(&Tensor, &Tensor)>,
    weight_d: &Tensor,
    settings: Settings,
) -> Result<Output> {
    let output_td = row_norm::allocate_output(operator, x_td, settings.measures)?;
    let result = Output { output: output_td, rstd: row_norm::allocate_statistic(operator, x_td)? };
    match x_td.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => {
            let x_td = row_norm::sum_on_host(x_td, residual)?.values()?;
            let mut output_td = result.output.values_mut()?;
            let mut rstd_t = result.rstd.values_mut()?;
            let outputs = Outputs { output: &mut output_td, statistics: [&mut rstd_t] };
            cpu::forward(&x_td, &weight_d.values()?, settings.epsilon, outputs);
        }
        Backend::Cuda => cuda::forward(operator, x_td, residual, weight_d, settings, &result)?,
    }
    Ok(result)
}

/// Computes the gradient of the input `x_td` from the output's gradient `dy_td`. Adds `dsum_td` if present:
/// the gradient that other readers of the residual sum contribute. All are `[.., width]`; `rstd_t` is
/// `[rows]`. With `measures`, a GPU also measures the result's largest magnitude.
pub fn backward_input(
    dy_td: &Tensor,
    dsum_td: Option<&Tensor>,
    x_td: &Tensor,
    weight_d: &Tensor,
    rstd_t: &Tensor,
    measures: bool,
) -> Result<Tensor> {
    const OPERATOR: &str = "rms_norm.backward_input";
    let dtype = check_operands(OPERATOR, x_td, &[("weight", weight_d)])?;
    check_saved(OPERATOR, dy_td, x_td, &[("rstd", rstd_t)])?;
    let dx_td = row_norm::allocate_gradient(OPERATOR, x_td, dsum_td, dtype, measures)?;
    match x_td.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => {
            let x_td = x_td.values()?;
            let rstd_t = rstd_t.values()?;
            let dsum_td = dsum_td.map(Tensor::values).transpose()?;
            let saved = cpu::Saved { x: &x_td, rstd: &rstd_t };
            cpu::backward_input(
                &dy_td.values()?,
                dsum_td.as_deref(),
                saved,
                &weight_d.values()?,
                &mut dx_td.values_mut()?,
            );
        }
        Backend::Cuda => cuda::backward_input(OPERATOR, dy_td, dsum_td, x_td, rstd_t, weight_d, &dx_td)?,
    }
    Ok(dx_td)
}

/// Computes the gradient of the weight: `[width]` (+)= Σ over rows of dy · x · rstd. The target is f32 or of
/// the type of `dy_td` and `x_td`. Sums are in f32 and rounded once.
pub fn backward_weight(
    dy_td: &Tensor,
    x_td: &Tensor,
    rstd_t: &Tensor,
    weight: &GradientTarget,
) -> Result<()> {
    const OPERATOR: &str = "rms_norm.backward_weight";
    check::not_empty(OPERATOR, "x", x_td)?;
    check_saved(OPERATOR, dy_td, x_td, &[("rstd", rstd_t)])?;
    check::targets(OPERATOR, x_td.dtype(), &[("weight", weight)])?;
    let rows = x_td.shape().rows();
    let width = x_td.shape().columns();
    check::shape(OPERATOR, "weight", &weight.tensor, [width])?;
    let workspace = Tensor::workspace(x_td.device(), OPERATOR, columns::workspace::bytes(rows, width))?;
    match x_td.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => {
            let dy_td = dy_td.values()?;
            let x_td = x_td.values()?;
            let rstd_t = rstd_t.values()?;
            let saved = cpu::Saved { x: &x_td, rstd: &rstd_t };
            cpu::backward_weight(&dy_td, saved, &mut weight.tensor.values_mut()?, weight.accumulate);
        }
        Backend::Cuda => cuda::backward_weight(OPERATOR, dy_td, x_td, rstd_t, &workspace, weight)?,
    }
    Ok(())
}
