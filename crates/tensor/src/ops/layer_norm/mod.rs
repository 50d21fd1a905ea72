//! Layer normalisation (Ba, Kiros, Hinton, *Layer Normalization*, 2016) over the innermost dimension, alone or
//! fused with the residual addition before it.
//!
//! y = (x − mean) · rstd · gamma + beta, with rstd = 1/√(variance + epsilon) and the biased variance.

mod cpu;
pub(in crate::ops) mod cuda;
mod workspace;

use device::{Backend, Category, DType, Request};

use super::{GradientTarget, check};
use crate::{Result, Shape, Tensor};

/// What the forward functions give.
#[derive(Clone, Debug)]
pub struct Output {
    /// The normalised, scaled and shifted input, of its shape.
    pub output: Tensor,
    /// Mean of every row, `[rows]` f32.
    pub mean: Tensor,
    /// 1/√(variance + epsilon) of every row, `[rows]` f32.
    pub rstd: Tensor,
}

/// Normalises the rows of `x [.., width]`; `gamma` and `beta` are `[width]`, all f32 or all bf16.
/// Errors: shapes or types that do not agree, rows of no element, out of memory.
pub fn forward(x: &Tensor, gamma: &Tensor, beta: &Tensor, epsilon: f32) -> Result<Output> {
    const OPERATOR: &str = "layer_norm.forward";
    check_operands(OPERATOR, x, &[("gamma", gamma), ("beta", beta)])?;
    let made = allocate(OPERATOR, x)?;
    match x.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => {
            let parameters = cpu::Affine { gamma: &gamma.read()?, beta: &beta.read()?, epsilon };
            cpu::forward(&x.read()?, parameters, outputs(&mut writes(&made)?));
        }
        Backend::Cuda => cuda::forward(OPERATOR, x, None, cuda::Affine { gamma, beta, epsilon }, &made)?,
    }
    Ok(made)
}

/// `sum = residual + branch` and its normalised rows; the sum is rounded to its type before it is normalised,
/// as it would be if two ranks shared the work. Both inputs are `[.., width]`, all operands f32 or all bf16.
/// Errors: as [`forward`].
pub fn forward_residual(
    residual: &Tensor,
    branch: &Tensor,
    gamma: &Tensor,
    beta: &Tensor,
    epsilon: f32,
) -> Result<(Tensor, Output)> {
    const OPERATOR: &str = "layer_norm.forward_residual";
    let dtype = check_operands(OPERATOR, residual, &[("gamma", gamma), ("beta", beta)])?;
    check::dtype(OPERATOR, "branch", branch, dtype)?;
    check::shape(OPERATOR, "branch", branch, residual.shape())?;
    let request = Request::new(Category::Activation, OPERATOR);
    let sum = Tensor::empty(residual.device(), residual.shape(), dtype, request)?;
    let made = allocate(OPERATOR, residual)?;
    match residual.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => {
            let parameters = cpu::Affine { gamma: &gamma.read()?, beta: &beta.read()?, epsilon };
            let (residual, branch, mut sum) = (residual.read()?, branch.read()?, sum.write()?);
            let mut writes = writes(&made)?;
            cpu::forward_residual(&residual, &branch, parameters, &mut sum, outputs(&mut writes));
        }
        Backend::Cuda => {
            let affine = cuda::Affine { gamma, beta, epsilon };
            cuda::forward(OPERATOR, residual, Some((branch, &sum)), affine, &made)?;
        }
    }
    Ok((sum, made))
}

/// The gradient of what was normalised, `x`, from that of the output, plus `dsum` when given (the gradient
/// that reaches the residual sum by its other way). All `[.., width]`, `mean` and `rstd` `[rows]`.
/// Errors: as [`forward`].
pub fn backward_input(
    dy: &Tensor,
    dsum: Option<&Tensor>,
    x: &Tensor,
    gamma: &Tensor,
    mean: &Tensor,
    rstd: &Tensor,
) -> Result<Tensor> {
    const OPERATOR: &str = "layer_norm.backward_input";
    let dtype = check_operands(OPERATOR, x, &[("gamma", gamma)])?;
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
            cpu::backward_input(&dy.read()?, dsum.as_deref(), saved, &gamma.read()?, &mut dx.write()?);
        }
        Backend::Cuda => {
            let saved = cuda::Saved { x, mean, rstd };
            cuda::backward_input(OPERATOR, dy, dsum, saved, gamma, &dx)?;
        }
    }
    Ok(dx)
}

/// gamma `[width]` (+)= Σ over rows of dy · (x − mean) · rstd, and beta `[width]` (+)= Σ over rows of dy. The targets are
/// both f32 or both of the type of `dy` and `x`; sums are in f32 and rounded once. Errors: as [`forward`].
pub fn backward_weight(
    dy: &Tensor,
    x: &Tensor,
    mean: &Tensor,
    rstd: &Tensor,
    gamma: &GradientTarget,
    beta: &GradientTarget,
) -> Result<()> {
    const OPERATOR: &str = "layer_norm.backward_weight";
    check::not_empty(OPERATOR, "x", x)?;
    check_saved(OPERATOR, dy, x, mean, rstd)?;
    let targets = [("gamma", gamma), ("beta", beta)];
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
            cpu::backward_gamma(&dy, saved, &mut gamma.tensor.write()?, gamma.accumulate);
            cpu::backward_beta(&dy, &mut beta.tensor.write()?, beta.accumulate, mean.len());
        }
        Backend::Cuda => {
            let saved = cuda::Saved { x, mean, rstd };
            cuda::backward_weight(OPERATOR, dy, saved, &workspace, [gamma, beta])?;
        }
    }
    Ok(())
}

/// The type of `x` and `parameters`.
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
