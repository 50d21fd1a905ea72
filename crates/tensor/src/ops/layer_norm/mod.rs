//! Layer normalisation (Ba, Kiros, Hinton, *Layer Normalization*, 2016) over the innermost dimension, alone
//! or fused with the residual addition before it.
//!
//! y = (x − mean) · rstd · weight + bias, where rstd, the reciprocal standard deviation, is 1/√(variance +
//! epsilon) with the biased variance.

mod cpu;
pub(crate) mod cuda;
mod output;
mod workspace;

use device::{Backend, Category, DType, Request};

use super::{GradientTarget, check};
use crate::{Result, Shape, Tensor};
pub use output::Output;

/// Normalises the rows of `x [.., width]`; `weight` and `bias`, which may be absent, are `[width]`, all of
/// one type.
/// Errors: shapes or types that do not agree, rows without elements, out of memory.
pub fn forward(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, epsilon: f32) -> Result<Output> {
    const OPERATOR: &str = "layer_norm.forward";
    check_operands(OPERATOR, x, &parameters(weight, bias))?;
    let made = allocate(OPERATOR, x)?;
    match x.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => {
            let bias = bias.map(Tensor::read::<f32>).transpose()?;
            let parameters = cpu::Affine { weight: &weight.read()?, bias: bias.as_deref(), epsilon };
            cpu::forward(&x.read()?, parameters, outputs(&mut writes(&made)?));
        }
        Backend::Cuda => cuda::forward(OPERATOR, x, None, cuda::Affine { weight, bias, epsilon }, &made)?,
    }
    Ok(made)
}

/// Computes `sum = residual + branch` and its normalised rows; the sum is rounded to its type before it is
/// normalised, as if a pipeline were cut between the two. Both inputs are `[.., width]`; all operands have
/// one type. Errors: as [`forward`].
pub fn forward_residual(
    residual: &Tensor,
    branch: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    epsilon: f32,
) -> Result<(Tensor, Output)> {
    const OPERATOR: &str = "layer_norm.forward_residual";
    let dtype = check_operands(OPERATOR, residual, &parameters(weight, bias))?;
    check::dtype(OPERATOR, "branch", branch, dtype)?;
    check::shape(OPERATOR, "branch", branch, residual.shape())?;
    let request = Request::new(Category::Activation, OPERATOR);
    let sum = Tensor::empty(residual.device(), residual.shape(), dtype, request)?;
    let made = allocate(OPERATOR, residual)?;
    match residual.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => {
            let bias = bias.map(Tensor::read::<f32>).transpose()?;
            let parameters = cpu::Affine { weight: &weight.read()?, bias: bias.as_deref(), epsilon };
            let (residual, branch, mut sum) = (residual.read()?, branch.read()?, sum.write()?);
            let mut writes = writes(&made)?;
            cpu::forward_residual(&residual, &branch, parameters, &mut sum, outputs(&mut writes));
        }
        Backend::Cuda => {
            let affine = cuda::Affine { weight, bias, epsilon };
            cuda::forward(OPERATOR, residual, Some((branch, &sum)), affine, &made)?;
        }
    }
    Ok((sum, made))
}

/// Computes the gradient of the input `x` from the output's gradient `dy`, plus `dsum` if given, the gradient
/// of the residual sum from its other readers. All are `[.., width]`; `mean` and `rstd` are `[rows]`. Errors:
/// as [`forward`].
pub fn backward_input(
    dy: &Tensor,
    dsum: Option<&Tensor>,
    x: &Tensor,
    weight: &Tensor,
    mean: &Tensor,
    rstd: &Tensor,
) -> Result<Tensor> {
    const OPERATOR: &str = "layer_norm.backward_input";
    let dtype = check_operands(OPERATOR, x, &[("weight", weight)])?;
    check_saved(OPERATOR, dy, x, mean, rstd)?;
    if let Some(dsum) = dsum {
        check::dtype(OPERATOR, "dsum", dsum, dtype)?;
        check::shape(OPERATOR, "dsum", dsum, x.shape())?;
    }
    let request = Request::new(Category::ActivationGradient, OPERATOR);
    let dx = Tensor::empty(x.device(), x.shape(), dtype, request)?;
    match x.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => {
            let (x, mean, rstd) = (x.read()?, mean.read()?, rstd.read()?);
            let dsum = dsum.map(Tensor::read::<f32>).transpose()?;
            let saved = cpu::Saved { x: &x, mean: &mean, rstd: &rstd };
            cpu::backward_input(&dy.read()?, dsum.as_deref(), saved, &weight.read()?, &mut dx.write()?);
        }
        Backend::Cuda => {
            let saved = cuda::Saved { x, mean, rstd };
            cuda::backward_input(OPERATOR, dy, dsum, saved, weight, &dx)?;
        }
    }
    Ok(dx)
}

/// Computes the gradients of the parameters: weight `[width]` (+)= Σ over rows of dy · (x − mean) · rstd, and
/// bias `[width]`, if any, (+)= Σ over rows of dy. The targets are both f32 or both of the type of `dy` and
/// `x`; sums are in f32 and rounded once. Errors: as [`forward`].
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
    check_saved(OPERATOR, dy, x, mean, rstd)?;
    let targets: Vec<_> =
        [Some(("weight", weight)), bias.map(|bias| ("bias", bias))].into_iter().flatten().collect();
    check::targets(OPERATOR, x.dtype(), &targets)?;
    let (rows, width) = (x.shape().rows(), x.shape().columns());
    for (name, target) in targets {
        check::shape(OPERATOR, name, &target.tensor, [width])?;
    }
    let bytes = workspace::backward_weight(rows, width);
    let workspace = Tensor::workspace(x.device(), OPERATOR, bytes)?;
    match x.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => {
            let (dy, x, mean, rstd) = (dy.read()?, x.read()?, mean.read()?, rstd.read()?);
            let saved = cpu::Saved { x: &x, mean: &mean, rstd: &rstd };
            cpu::backward_weight(&dy, saved, &mut weight.tensor.write()?, weight.accumulate);
            if let Some(bias) = bias {
                cpu::backward_bias(&dy, &mut bias.tensor.write()?, bias.accumulate, mean.len());
            }
        }
        Backend::Cuda => {
            let saved = cuda::Saved { x, mean, rstd };
            cuda::backward_weight(OPERATOR, dy, saved, &workspace, weight, bias)?;
        }
    }
    Ok(())
}

/// Names and tensors of the parameters.
fn parameters<'a>(weight: &'a Tensor, bias: Option<&'a Tensor>) -> Vec<(&'static str, &'a Tensor)> {
    std::iter::once(("weight", weight)).chain(bias.map(|bias| ("bias", bias))).collect()
}

/// Returns the type of `x` and `parameters`. Errors: shapes or types that do not agree.
fn check_operands(
    operator: &'static str,
    x: &Tensor,
    parameters: &[(&'static str, &Tensor)],
) -> Result<DType> {
    let dtype = check::computed(operator, &[("x", x)])?;
    check::not_empty(operator, "x", x)?;
    let width = x.shape().columns();
    for (name, tensor) in parameters {
        check::dtype(operator, name, tensor, dtype)?;
        check::shape(operator, name, tensor, [width])?;
    }
    Ok(dtype)
}

fn check_saved(operator: &'static str, dy: &Tensor, x: &Tensor, mean: &Tensor, rstd: &Tensor) -> Result<()> {
    check::computed(operator, &[("x", x), ("dy", dy)])?;
    check::f32s(operator, &[("mean", mean), ("rstd", rstd)])?;
    check::shape(operator, "dy", dy, x.shape())?;
    check::shape(operator, "mean", mean, [x.shape().rows()])?;
    check::shape(operator, "rstd", rstd, [x.shape().rows()])
}

fn allocate(operator: &'static str, x: &Tensor) -> Result<Output> {
    let allocate = |shape: Shape, dtype: DType| {
        Tensor::empty(x.device(), shape, dtype, Request::new(Category::Activation, operator))
    };
    let statistic = || allocate([x.shape().rows()].into(), DType::F32);
    Ok(Output { output: allocate(x.shape(), x.dtype())?, mean: statistic()?, rstd: statistic()? })
}

type Write<'a> = device::WriteGuard<'a, f32>;

fn writes(made: &Output) -> Result<[Write<'_>; 3]> {
    Ok([made.output.write()?, made.mean.write()?, made.rstd.write()?])
}

fn outputs<'a>([output, mean, rstd]: &'a mut [Write<'_>; 3]) -> cpu::Outputs<'a> {
    cpu::Outputs { output, mean, rstd }
}
