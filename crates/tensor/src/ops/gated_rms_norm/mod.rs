//! RMS normalisation of each head of a row, times a gate, as after the gated delta rule.
//!
//! y = x · rstd · weight · f(z), where rstd is 1/√(mean of x² + epsilon) of a head. Backward computes rstd
//! again.

mod cpu;
pub(crate) mod cuda;
mod operands;

pub use operands::{GateFunction, Gradients, Operands, Settings};

use device::{Backend, Category, DType, Request};

use super::{GradientTarget, check};
use crate::{Result, Tensor};
use operands::runs;

/// Normalises and gates each head.
///
/// # Errors
/// Shapes or types that do not agree, heads of more than 1,024 columns, out of memory.
pub fn forward(operands: Operands<'_>, settings: Settings) -> Result<Tensor> {
    const OPERATOR: &str = "gated_rms_norm.forward";
    let (sizes, dtype) = operands.check(OPERATOR)?;
    let y = operands.x.like(dtype, Request::new(Category::Activation, OPERATOR))?;
    match operands.x.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => cpu::forward(operands, settings, &y)?,
        Backend::Cuda => cuda::forward(OPERATOR, operands, sizes, settings, &y)?,
    }
    Ok(y)
}

/// Computes the gradients of `x` and `z` from the output's gradient, and partial sums of the weight's.
pub fn backward_input(dy: &Tensor, operands: Operands<'_>, settings: Settings) -> Result<Gradients> {
    const OPERATOR: &str = "gated_rms_norm.backward_input";
    let (sizes, dtype) = operands.check(OPERATOR)?;
    check::dtype(OPERATOR, "dy", dy, dtype)?;
    check::shape(OPERATOR, "dy", dy, operands.x.shape())?;
    let request = Request::new(Category::ActivationGradient, OPERATOR);
    let x = operands.x.like(dtype, request)?;
    let z = operands.x.like(dtype, request)?;
    let sums = Tensor::empty(dy.device(), [runs(sizes[0]), sizes[1]], DType::F32, request)?;
    let gradients = Gradients { x, z, sums };
    match dy.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => cpu::backward_input(dy, operands, sizes, settings, &gradients)?,
        Backend::Cuda => cuda::backward_input(OPERATOR, dy, operands, sizes, settings, &gradients)?,
    }
    Ok(gradients)
}

/// Computes the weight's gradient from the partial sums of [`backward_input`]. The target is f32 or of
/// `computed`, the type of the activations.
pub fn backward_weight(sums: &Tensor, computed: DType, weight: &GradientTarget) -> Result<()> {
    const OPERATOR: &str = "gated_rms_norm.backward_weight";
    check::f32s(OPERATOR, &[("sums", sums)])?;
    check::rank(OPERATOR, "sums", sums, 2)?;
    check::targets(OPERATOR, computed, &[("weight", weight)])?;
    check::shape(OPERATOR, "weight", &weight.tensor, [sums.shape().columns()])?;
    match sums.device().backend() {
        Backend::Meta => Ok(()),
        Backend::Cpu => cpu::backward_weight(sums, weight),
        Backend::Cuda => cuda::backward_weight(OPERATOR, sums, weight),
    }
}
