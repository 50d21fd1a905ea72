//! RMS normalisation of rows whose columns are divided over ranks or shards. Callers add up the partial sums
//! of the shards.
//!
//! y = x · rstd · weight, where rstd is 1/√(mean of x² over all shards + epsilon). With g = dy · weight and
//! x̂ = x · rstd, dx is rstd · (g − x̂ · mean of g · x̂ over all shards). The gradient of the weight is
//! computed by [`rms_norm`](super::rms_norm).

mod cpu;
pub(crate) mod cuda;
mod saved;

use device::{Backend, Category, DType, Request};

use super::check;
use super::row_norm::{check_operands, check_saved};
use crate::{Result, Tensor};
pub use saved::Saved;

/// Writes Σ x² of each row of `x [.., width]`, the columns of one shard, to `sums`, `[rows]` f32.
///
/// # Errors
/// Shapes or types that do not agree, rows without elements.
pub fn squares(x: &Tensor, sums: &Tensor) -> Result<()> {
    const OPERATOR: &str = "divided_norm.squares";
    check_operands(OPERATOR, x, &[])?;
    check_sums(OPERATOR, x, sums)?;
    match x.device().backend() {
        Backend::Meta => Ok(()),
        Backend::Cpu => cpu::squares(x, sums),
        Backend::Cuda => cuda::squares(OPERATOR, x, sums),
    }
}

/// Replaces sums of squares over `columns` columns, f32, by rstd = 1/√(sum / columns + epsilon).
pub fn rstd(sums: &Tensor, columns: usize, epsilon: f32) -> Result<()> {
    const OPERATOR: &str = "divided_norm.rstd";
    check::f32s(OPERATOR, &[("sums", sums)])?;
    match sums.device().backend() {
        Backend::Meta => Ok(()),
        Backend::Cpu => cpu::rstd(sums, columns, epsilon),
        Backend::Cuda => cuda::rstd(OPERATOR, sums, columns, epsilon),
    }
}

/// Returns x · rstd · weight for `x [.., width]` and `weight [width]` of one type, and `rstd [rows]`.
pub fn forward(x: &Tensor, weight: &Tensor, rstd: &Tensor) -> Result<Tensor> {
    const OPERATOR: &str = "divided_norm.forward";
    check_operands(OPERATOR, x, &[("weight", weight)])?;
    check_sums(OPERATOR, x, rstd)?;
    let y = x.like(x.dtype(), Request::new(Category::Activation, OPERATOR))?;
    match x.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => cpu::forward(x, weight, rstd, &y)?,
        Backend::Cuda => cuda::forward(OPERATOR, x, weight, rstd, &y)?,
    }
    Ok(y)
}

/// Writes Σ dy · weight · x · rstd of each row to `sums`, `[rows]` f32.
pub fn products(dy: &Tensor, saved: Saved<'_>, sums: &Tensor) -> Result<()> {
    const OPERATOR: &str = "divided_norm.products";
    check_backward(OPERATOR, dy, saved, sums)?;
    match dy.device().backend() {
        Backend::Meta => Ok(()),
        Backend::Cpu => cpu::products(dy, saved, sums),
        Backend::Cuda => cuda::products(OPERATOR, dy, saved, sums),
    }
}

/// Returns the gradient of `x` from the output's gradient and from the sums of [`products`] over all shards,
/// which have `columns` columns together.
pub fn backward_input(dy: &Tensor, saved: Saved<'_>, sums: &Tensor, columns: usize) -> Result<Tensor> {
    const OPERATOR: &str = "divided_norm.backward_input";
    check_backward(OPERATOR, dy, saved, sums)?;
    let dx = dy.like(dy.dtype(), Request::new(Category::ActivationGradient, OPERATOR))?;
    match dy.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => cpu::backward_input(dy, saved, sums, columns, &dx)?,
        Backend::Cuda => cuda::backward_input(OPERATOR, dy, saved, sums, columns, &dx)?,
    }
    Ok(dx)
}

fn check_backward(operator: &'static str, dy: &Tensor, saved: Saved<'_>, sums: &Tensor) -> Result<()> {
    let Saved { x, weight, rstd } = saved;
    check_operands(operator, x, &[("weight", weight)])?;
    check_saved(operator, dy, x, &[("rstd", rstd)])?;
    check_sums(operator, x, sums)
}

/// Refuses sums that are not f32 or not one per row.
fn check_sums(operator: &'static str, x: &Tensor, sums: &Tensor) -> Result<()> {
    check::dtype(operator, "sums", sums, DType::F32)?;
    check::shape(operator, "sums", sums, [x.shape().rows()])
}
