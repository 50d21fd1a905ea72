//! The gated delta rule (Yang and others, *Gated Delta Networks*, 2024): linear attention whose state decays
//! and is corrected by each token. With a decay by channel it is the rule of Kimi Delta Attention (2025).
//!
//! A head has a state S, `[width, value_width]`. Token t, with its normalised query q and key k, value v,
//! decay α = e^g and rate β, updates it and reads it:
//!
//! * S ← α · S, for each channel by itself if decays are by channel
//! * S ← S + k · (β · (v − Sᵀk))ᵀ
//! * o = Sᵀq
//!
//! Queries and keys are divided by their norms first, and queries by √width. Tokens are computed in chunks of
//! [`CHUNK`], which follow each other in order; within a chunk the corrections of all tokens are one
//! triangular system. A token that begins a document begins with an empty state.
//!
//! All arithmetic is f32, but on GPUs of compute capability 9 to 11, with half types and a decay per head,
//! matmuls run on tensor cores: their operands are rounded to the type, their sums and the states are f32.
//!
//! Backward saves nothing but the operands. It computes the states at the chunks' beginnings again, into
//! its workspace: they take width · value_width · 4 / 64 bytes for each token and head, 1,024 bytes for
//! heads of 128 columns, which is four times the value of the token in bf16. A layer's workspace is freed
//! before the next layer's backward, whereas saved states of all layers would add up.

mod cpu;
pub(crate) mod cuda;
mod operands;
mod step;
mod workspace;

pub use operands::{CHUNK, DeltaHeads, DeltaSettings, Gradients, Operands, Output};
pub use step::step;

use device::{Backend, Category, DType, Request};

use super::check;
use crate::{Result, Tensor};
use operands::Geometry;

/// Computes the rule over whole sequences. With `keeps_state`, also returns the states after them.
///
/// # Errors
/// Shapes or types that do not agree, heads that do not divide, out of memory.
pub fn forward(operands: &Operands<'_>, settings: DeltaSettings, keeps_state: bool) -> Result<Output> {
    const OPERATOR: &str = "gated_delta_rule.forward";
    let geometry = Geometry::check(OPERATOR, operands, settings)?;
    let device = operands.qkv.device();
    let dtype = operands.qkv.dtype();
    let request = Request::new(Category::Activation, OPERATOR);
    let output_blc = Tensor::empty(device, geometry.output_shape(), dtype, request)?;
    let state = match keeps_state {
        true => Some(Tensor::empty(device, geometry.state_shape(), DType::F32, request)?),
        false => None,
    };
    let workspace = workspace::forward(operands.qkv, OPERATOR, &geometry)?;
    device.count_flops(geometry.flops());
    match device.backend() {
        Backend::Meta => {}
        Backend::Cpu => {
            cpu::forward(OPERATOR, operands, &geometry, &workspace, (&output_blc, state.as_ref()))?
        }
        Backend::Cuda => {
            cuda::forward(OPERATOR, operands, &geometry, &workspace, (&output_blc, state.as_ref()))?
        }
    }
    Ok(Output { output: output_blc, state })
}

/// Computes the gradients of the operands of [`forward`] from the gradients of its output, `dy_blc`, and of
/// the states after the sequences, if they have one. Gradients of a query or key head are added over its
/// value heads in order. The gradient of the first states is returned if there are first states.
pub fn backward(
    dy_blc: &Tensor,
    dstate: Option<&Tensor>,
    operands: &Operands<'_>,
    settings: DeltaSettings,
) -> Result<Gradients> {
    const OPERATOR: &str = "gated_delta_rule.backward";
    let geometry = Geometry::check(OPERATOR, operands, settings)?;
    let Operands { qkv, decay, rate, state, .. } = *operands;
    check::dtype(OPERATOR, "dy", dy_blc, qkv.dtype())?;
    check::shape(OPERATOR, "dy", dy_blc, geometry.output_shape())?;
    if let Some(dstate) = dstate {
        check::f32s(OPERATOR, &[("dstate", dstate)])?;
        check::shape(OPERATOR, "dstate", dstate, geometry.state_shape())?;
    }
    let request = Request::new(Category::ActivationGradient, OPERATOR);
    let gradients = Gradients {
        qkv: qkv.like(qkv.dtype(), request)?,
        decay: decay.like(DType::F32, request)?,
        rate: rate.like(DType::F32, request)?,
        state: state.map(|state| state.like(DType::F32, request)).transpose()?,
    };
    let device = qkv.device();
    let workspace = workspace::backward(qkv, OPERATOR, &geometry)?;
    device.count_flops(3 * geometry.flops());
    match device.backend() {
        Backend::Meta => {}
        Backend::Cpu => {
            cpu::backward(OPERATOR, (dy_blc, dstate), operands, &geometry, &workspace, &gradients)?
        }
        Backend::Cuda => {
            cuda::backward(OPERATOR, (dy_blc, dstate), operands, &geometry, &workspace, &gradients)?
        }
    }
    Ok(gradients)
}
