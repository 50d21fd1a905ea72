//! Layer normalisation (Ba, Kiros, Hinton, *Layer Normalization*, 2016) over the innermost dimension, alone or
//! fused with the residual addition before it.
//!
//! y = (x − mean) · rstd · gamma + beta, with rstd = 1/√(variance + epsilon) and the biased variance.

mod cpu;

use device::{Category, DType, Request};

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

/// Normalises the rows of `x [.., width]`; `gamma` and `beta` are `[width]`, all f32.
/// Errors: shapes or types that do not agree, rows of no element, out of memory.
pub fn forward(x: &Tensor, gamma: &Tensor, beta: &Tensor, epsilon: f32) -> Result<Output> {
    const OPERATOR: &str = "layer_norm.forward";
    check_operands(OPERATOR, x, &[("gamma", gamma), ("beta", beta)])?;
    let made = allocate(OPERATOR, x)?;
    if !x.device().is_meta() {
        let parameters = cpu::Affine { gamma: &gamma.read()?, beta: &beta.read()?, epsilon };
        cpu::forward(&x.read()?, parameters, outputs(&mut writes(&made)?));
    }
    Ok(made)
}

/// `sum = residual + branch` and its normalised rows; the sum is rounded to its type before it is normalised,
/// as it would be if two ranks shared the work. Both inputs are `[.., width]` f32.
/// Errors: as [`forward`].
pub fn forward_residual(
    residual: &Tensor,
    branch: &Tensor,
    gamma: &Tensor,
    beta: &Tensor,
    epsilon: f32,
) -> Result<(Tensor, Output)> {
    const OPERATOR: &str = "layer_norm.forward_residual";
    check_operands(OPERATOR, residual, &[("gamma", gamma), ("beta", beta)])?;
    check::f32s(OPERATOR, &[("branch", branch)])?;
    check::shape(OPERATOR, "branch", branch, residual.shape())?;
    let request = Request::new(Category::Activation, OPERATOR);
    let sum = Tensor::empty(residual.device(), residual.shape(), DType::F32, request)?;
    let made = allocate(OPERATOR, residual)?;
    if !residual.device().is_meta() {
        let parameters = cpu::Affine { gamma: &gamma.read()?, beta: &beta.read()?, epsilon };
        let (residual, branch) = (residual.read()?, branch.read()?);
        cpu::forward_residual(
            &residual,
            &branch,
            parameters,
            &mut sum.write()?,
            outputs(&mut writes(&made)?),
        );
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
    check_operands(OPERATOR, x, &[("gamma", gamma)])?;
    check_saved(OPERATOR, dy, x, mean, rstd)?;
    if let Some(dsum) = dsum {
        check::f32s(OPERATOR, &[("dsum", dsum)])?;
        check::shape(OPERATOR, "dsum", dsum, x.shape())?;
    }
    let request = Request::new(Category::ActivationGradient, OPERATOR);
    let dx = Tensor::empty(x.device(), x.shape(), DType::F32, request)?;
    if !x.device().is_meta() {
        let (x, mean, rstd) = (x.read()?, mean.read()?, rstd.read()?);
        let dsum = dsum.map(Tensor::read::<f32>).transpose()?;
        let saved = cpu::Saved { x: &x, mean: &mean, rstd: &rstd };
        cpu::backward_input(&dy.read()?, dsum.as_deref(), saved, &gamma.read()?, &mut dx.write()?);
    }
    Ok(dx)
}

/// gamma `[width]` (+)= Σ over rows of dy · (x − mean) · rstd, and beta `[width]` (+)= Σ over rows of dy.
/// Errors: as [`forward`].
pub fn backward_weight(
    dy: &Tensor,
    x: &Tensor,
    mean: &Tensor,
    rstd: &Tensor,
    gamma: &GradientTarget,
    beta: &GradientTarget,
) -> Result<()> {
    const OPERATOR: &str = "layer_norm.backward_weight";
    check_operands(OPERATOR, x, &[("gamma", &gamma.tensor), ("beta", &beta.tensor)])?;
    check_saved(OPERATOR, dy, x, mean, rstd)?;
    if !x.device().is_meta() {
        let (dy, x, mean, rstd) = (dy.read()?, x.read()?, mean.read()?, rstd.read()?);
        let saved = cpu::Saved { x: &x, mean: &mean, rstd: &rstd };
        cpu::backward_gamma(&dy, saved, &mut gamma.tensor.write()?, gamma.accumulate);
        cpu::backward_beta(&dy, &mut beta.tensor.write()?, beta.accumulate, mean.len());
    }
    Ok(())
}

fn check_operands(operator: &'static str, x: &Tensor, parameters: &[(&'static str, &Tensor)]) -> Result<()> {
    check::f32s(operator, &[("x", x)])?;
    check::f32s(operator, parameters)?;
    check::not_empty(operator, "x", x)?;
    let width = x.shape().columns();
    parameters.iter().try_for_each(|(name, tensor)| check::shape(operator, name, tensor, [width]))
}

fn check_saved(operator: &'static str, dy: &Tensor, x: &Tensor, mean: &Tensor, rstd: &Tensor) -> Result<()> {
    check::f32s(operator, &[("dy", dy), ("mean", mean), ("rstd", rstd)])?;
    check::shape(operator, "dy", dy, x.shape())?;
    check::shape(operator, "mean", mean, [x.shape().rows()])?;
    check::shape(operator, "rstd", rstd, [x.shape().rows()])
}

fn allocate(operator: &'static str, x: &Tensor) -> Result<Output> {
    let allocate = |shape: Shape| {
        Tensor::empty(x.device(), shape, DType::F32, Request::new(Category::Activation, operator))
    };
    let rows = [x.shape().rows()];
    Ok(Output { output: allocate(x.shape())?, mean: allocate(rows.into())?, rstd: allocate(rows.into())? })
}

type Write<'a> = device::WriteGuard<'a, f32>;

fn writes(made: &Output) -> Result<[Write<'_>; 3]> {
    Ok([made.output.write()?, made.mean.write()?, made.rstd.write()?])
}

fn outputs<'a>([output, mean, rstd]: &'a mut [Write<'_>; 3]) -> cpu::Outputs<'a> {
    cpu::Outputs { output, mean, rstd }
}
