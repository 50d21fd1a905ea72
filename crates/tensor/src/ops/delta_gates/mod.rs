//! Decays and rates of the gated delta rule, from two projections of a token.
//!
//! * log α = −e^log_speed · softplus(a + bias), for each head or each channel of a head
//! * β = factor · sigmoid(b), for each head
//!
//! Results are f32 for operands of any type.

mod cpu;
pub(crate) mod cuda;
mod operands;

pub use operands::{Gates, Operands};

use device::{Backend, Category, DType, Request};

use super::{GradientTarget, check};
use crate::{Result, Tensor};
use operands::check_gradients;

/// Computes decays, shaped as `a`, and rates, shaped as `b`, both f32.
///
/// # Errors
/// Shapes or types that do not agree, out of memory.
pub fn forward(operands: Operands<'_>, factor: f32) -> Result<Gates<Tensor>> {
    const OPERATOR: &str = "delta_gates.forward";
    let (sizes, _) = operands.check(OPERATOR)?;
    let request = Request::new(Category::Activation, OPERATOR);
    let decay = operands.a.like(DType::F32, request)?;
    let gates = Gates { decay, rate: operands.b.like(DType::F32, request)? };
    match operands.a.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => cpu::forward(operands, sizes, factor, &gates)?,
        Backend::Cuda => cuda::forward(OPERATOR, operands, sizes, factor, &gates)?,
    }
    Ok(gates)
}

/// Computes the gradients of `a` and `b` from the gradients of decays and rates, f32.
pub fn backward_input(
    gradients: Gates<&Tensor>,
    operands: Operands<'_>,
    factor: f32,
) -> Result<Gates<Tensor>> {
    const OPERATOR: &str = "delta_gates.backward_input";
    let (sizes, dtype) = operands.check(OPERATOR)?;
    check_gradients(OPERATOR, &gradients, operands)?;
    let request = Request::new(Category::ActivationGradient, OPERATOR);
    let decay = operands.a.like(dtype, request)?;
    let inputs = Gates { decay, rate: operands.b.like(dtype, request)? };
    match operands.a.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => cpu::backward_input(&gradients, operands, sizes, factor, &inputs)?,
        Backend::Cuda => cuda::backward_input(OPERATOR, &gradients, operands, sizes, factor, &inputs)?,
    }
    Ok(inputs)
}

/// Computes the gradients of `log_speed` and `bias` from the gradient of the decays: sums over rows in a
/// fixed order, f32 or of the operands' type.
pub fn backward_weight(
    ddecay: &Tensor,
    operands: Operands<'_>,
    log_speed: &GradientTarget,
    bias: &GradientTarget,
) -> Result<()> {
    const OPERATOR: &str = "delta_gates.backward_weight";
    let (sizes, dtype) = operands.check(OPERATOR)?;
    check::f32s(OPERATOR, &[("ddecay", ddecay)])?;
    check::shape(OPERATOR, "ddecay", ddecay, operands.a.shape())?;
    check::targets(OPERATOR, dtype, &[("log_speed", log_speed), ("bias", bias)])?;
    check::elements(OPERATOR, "log_speed", &log_speed.tensor, sizes.heads)?;
    check::elements(OPERATOR, "bias", &bias.tensor, sizes.decays)?;
    match ddecay.device().backend() {
        Backend::Meta => Ok(()),
        Backend::Cpu => cpu::backward_weight(ddecay, operands, sizes, [log_speed, bias]),
        Backend::Cuda => cuda::backward_weight(OPERATOR, ddecay, operands, sizes, [log_speed, bias]),
    }
}
