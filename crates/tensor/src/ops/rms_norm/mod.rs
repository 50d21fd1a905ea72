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

/// Normalises the rows of `x [.., width]`. `weight` is `[width]`, of the type of `x`.
///
/// # Errors
/// Shapes or types that do not agree, rows without elements, out of memory.
pub fn forward(x: &Tensor, weight: &Tensor, settings: impl Into<Settings>) -> Result<Output> {
    const OPERATOR: &str = "rms_norm.forward";
    check_operands(OPERATOR, x, &[("weight", weight)])?;
    normalise(OPERATOR, x, None, weight, settings.into())
}

/// Computes `sum = residual + branch` and its normalised rows. The sum is rounded to its type before it is
/// normalised, so results are the same if a pipeline is cut between the two. Both inputs are `[.., width]`;
/// all operands have one type.
pub fn forward_residual(
    residual: &Tensor,
    branch: &Tensor,
    weight: &Tensor,
    settings: impl Into<Settings>,
) -> Result<(Tensor, Output)> {
    const OPERATOR: &str = "rms_norm.forward_residual";
    let dtype = check_operands(OPERATOR, residual, &[("weight", weight)])?;
    let sum = row_norm::allocate_sum(OPERATOR, residual, branch, dtype)?;
    let result = normalise(OPERATOR, residual, Some((branch, &sum)), weight, settings.into())?;
    Ok((sum, result))
}

/// Normalises the rows of `x`. With `residual` (branch, sum), stores x + branch in `sum` and normalises that.
fn normalise(
    operator: &'static str,
    x: &Tensor,
    residual: Option<(&Tensor, &Tensor)>,
    weight: &Tensor,
    settings: Settings,
) -> Result<Output> {
    let output = row_norm::allocate_output(operator, x, settings.measures)?;
    let result = Output { output, rstd: row_norm::allocate_statistic(operator, x)? };
    match x.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => {
            let x = row_norm::sum_on_host(x, residual)?.values()?;
            let mut output = result.output.values_mut()?;
            let mut rstd = result.rstd.values_mut()?;
            let outputs = Outputs { output: &mut output, statistics: [&mut rstd] };
            cpu::forward(&x, &weight.values()?, settings.epsilon, outputs);
        }
        Backend::Cuda => cuda::forward(operator, x, residual, weight, settings, &result)?,
    }
    Ok(result)
}

/// Computes the gradient of the input `x` from the output's gradient `dy`. Adds `dsum` if present: the
/// gradient that other readers of the residual sum contribute. All are `[.., width]`; `rstd` is `[rows]`.
/// With `measures`, a GPU also measures the result's largest magnitude.
pub fn backward_input(
    dy: &Tensor,
    dsum: Option<&Tensor>,
    x: &Tensor,
    weight: &Tensor,
    rstd: &Tensor,
    measures: bool,
) -> Result<Tensor> {
    const OPERATOR: &str = "rms_norm.backward_input";
    let dtype = check_operands(OPERATOR, x, &[("weight", weight)])?;
    check_saved(OPERATOR, dy, x, &[("rstd", rstd)])?;
    let dx = row_norm::allocate_gradient(OPERATOR, x, dsum, dtype, measures)?;
    match x.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => {
            let x = x.values()?;
            let rstd = rstd.values()?;
            let dsum = dsum.map(Tensor::values).transpose()?;
            let saved = cpu::Saved { x: &x, rstd: &rstd };
            cpu::backward_input(
                &dy.values()?,
                dsum.as_deref(),
                saved,
                &weight.values()?,
                &mut dx.values_mut()?,
            );
        }
        Backend::Cuda => cuda::backward_input(OPERATOR, dy, dsum, x, rstd, weight, &dx)?,
    }
    Ok(dx)
}

/// Computes the gradient of the weight: `[width]` (+)= Σ over rows of dy · x · rstd. The target is f32 or of
/// the type of `dy` and `x`. Sums are in f32 and rounded once.
pub fn backward_weight(dy: &Tensor, x: &Tensor, rstd: &Tensor, weight: &GradientTarget) -> Result<()> {
    const OPERATOR: &str = "rms_norm.backward_weight";
    check::not_empty(OPERATOR, "x", x)?;
    check_saved(OPERATOR, dy, x, &[("rstd", rstd)])?;
    check::targets(OPERATOR, x.dtype(), &[("weight", weight)])?;
    let rows = x.shape().rows();
    let width = x.shape().columns();
    check::shape(OPERATOR, "weight", &weight.tensor, [width])?;
    let workspace = Tensor::workspace(x.device(), OPERATOR, columns::workspace::bytes(rows, width))?;
    match x.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => {
            let dy = dy.values()?;
            let x = x.values()?;
            let rstd = rstd.values()?;
            let saved = cpu::Saved { x: &x, rstd: &rstd };
            cpu::backward_weight(&dy, saved, &mut weight.tensor.values_mut()?, weight.accumulate);
        }
        Backend::Cuda => cuda::backward_weight(OPERATOR, dy, x, rstd, &workspace, weight)?,
    }
    Ok(())
}
