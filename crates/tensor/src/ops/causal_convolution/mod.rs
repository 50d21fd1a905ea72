//! Causal depthwise convolution of sequences, as in state-space models: every channel of a token is a
//! weighted sum of the channel's last inputs, with an optional bias and SiLU.
//!
//! y(t) = f(bias + Σ weight(tap) · x(t − width + 1 + tap)). Inputs before the start of a token's document are
//! 0, and those before the sequence are its halo. Sums over tokens of the weights' gradients are in fixed
//! runs of rows. The state of a sequence is its last width − 1 inputs; from it the next token is computed
//! alone.

mod cpu;
pub(crate) mod cuda;
mod operands;

use device::{Backend, Category, DType, Request};

use super::{GradientTarget, check, columns};
use crate::{Result, Tensor};
pub use operands::{Operands, WIDTHS};

/// Convolves the sequences `x_blc [batch, time, channels]`, each channel by itself.
///
/// # Errors
/// Shapes or types that do not agree, a width that is not in [`WIDTHS`], out of memory.
pub fn forward(x_blc: &Tensor, operands: Operands<'_>) -> Result<Tensor> {
    const OPERATOR: &str = "causal_convolution.forward";
    operands.check(OPERATOR, x_blc)?;
    let y_blc = x_blc.like(x_blc.dtype(), Request::new(Category::Activation, OPERATOR))?;
    match x_blc.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => operands.on_host(OPERATOR, x_blc, |operands| {
            operands.forward(&x_blc.values()?, &mut y_blc.values_mut()?);
            Ok(())
        })?,
        Backend::Cuda => cuda::forward(OPERATOR, x_blc, operands, &y_blc)?,
    }
    Ok(y_blc)
}

/// Computes the gradient of `x_blc` from that of the output, `dy_blc`.
pub fn backward_input(dy_blc: &Tensor, x_blc: &Tensor, operands: Operands<'_>) -> Result<Tensor> {
    const OPERATOR: &str = "causal_convolution.backward_input";
    operands.check(OPERATOR, x_blc)?;
    operands.check_gradient(OPERATOR, dy_blc, x_blc)?;
    let dx_blc = x_blc.like(x_blc.dtype(), Request::new(Category::ActivationGradient, OPERATOR))?;
    match x_blc.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => operands.on_host(OPERATOR, x_blc, |operands| {
            operands.backward_input(&dy_blc.values()?, &x_blc.values()?, &mut dx_blc.values_mut()?);
            Ok(())
        })?,
        Backend::Cuda => cuda::backward_input(OPERATOR, dy_blc, x_blc, operands, &dx_blc)?,
    }
    Ok(dx_blc)
}

/// Computes the gradient of the halo, `[batch, width − 1, channels]`, from that of the output.
pub fn backward_halo(dy_blc: &Tensor, x_blc: &Tensor, operands: Operands<'_>) -> Result<Tensor> {
    const OPERATOR: &str = "causal_convolution.backward_halo";
    let width = operands.check(OPERATOR, x_blc)?;
    operands.check_gradient(OPERATOR, dy_blc, x_blc)?;
    let shape = [x_blc.shape().dims()[0], width - 1, x_blc.shape().columns()];
    let request = Request::new(Category::ActivationGradient, OPERATOR);
    let dhalo = Tensor::empty(x_blc.device(), shape, x_blc.dtype(), request)?;
    match x_blc.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => operands.on_host(OPERATOR, x_blc, |operands| {
            operands.backward_halo(&dy_blc.values()?, &x_blc.values()?, &mut dhalo.values_mut()?);
            Ok(())
        })?,
        Backend::Cuda => cuda::backward_halo(OPERATOR, dy_blc, x_blc, operands, &dhalo)?,
    }
    Ok(dhalo)
}

/// Computes the gradients of the weights and the bias, each f32 or of the type of `x_blc`. Sums are in f32
/// and rounded once.
pub fn backward_weight(
    dy_blc: &Tensor,
    x_blc: &Tensor,
    operands: Operands<'_>,
    weight: &GradientTarget,
    bias: Option<&GradientTarget>,
) -> Result<()> {
    const OPERATOR: &str = "causal_convolution.backward_weight";
    let width = operands.check(OPERATOR, x_blc)?;
    operands.check_gradient(OPERATOR, dy_blc, x_blc)?;
    let channels = x_blc.shape().columns();
    let targets: Vec<_> = [("weight", weight)].into_iter().chain(bias.map(|bias| ("bias", bias))).collect();
    check::targets(OPERATOR, x_blc.dtype(), &targets)?;
    check::elements(OPERATOR, "weight", &weight.tensor, channels * width)?;
    if let Some(bias) = bias {
        check::shape(OPERATOR, "bias", &bias.tensor, [channels])?;
    }
    let bytes = columns::workspace::bytes(x_blc.shape().rows(), channels * (width + 1));
    let workspace = Tensor::workspace(x_blc.device(), OPERATOR, bytes)?;
    match x_blc.device().backend() {
        Backend::Meta => Ok(()),
        Backend::Cpu => operands.on_host(OPERATOR, x_blc, |operands| {
            let dy_blc = dy_blc.values()?;
            let mut weight_ck = weight.tensor.values_mut()?;
            let mut bias_c = bias.map(|bias| bias.tensor.values_mut()).transpose()?;
            let bias_c = bias_c.as_deref_mut().zip(bias.map(|bias| bias.accumulate));
            operands.backward_weight(&dy_blc, &x_blc.values()?, (&mut weight_ck, weight.accumulate), bias_c);
            Ok(())
        }),
        Backend::Cuda => {
            cuda::backward_weight(OPERATOR, dy_blc, x_blc, operands, &workspace, [Some(weight), bias])
        }
    }
}

/// Allocates the states of `slots` sequences, `[slots, width − 1, channels]` with the oldest input first.
pub fn state(
    device: &device::Device,
    slots: usize,
    [width, channels]: [usize; 2],
    dtype: DType,
) -> Result<Tensor> {
    const OPERATOR: &str = "causal_convolution.state";
    let request = Request::new(Category::Buffer, OPERATOR);
    Tensor::empty(device, [slots, width.saturating_sub(1), channels], dtype, request)
}

/// Copies the last inputs of a whole sequence `x_blc [1, time, channels]` to `slot` of `state`.
///
/// # Errors
/// Shapes or types that do not agree, a slot that the state does not have.
pub fn store(x_blc: &Tensor, state: &Tensor, slot: usize) -> Result<()> {
    const OPERATOR: &str = "causal_convolution.store";
    check::rank(OPERATOR, "state", state, 3)?;
    let [slots, kept, channels] = [state.shape().dims()[0], state.shape().dims()[1], state.shape().columns()];
    let time = x_blc.shape().rows();
    check::dtype(OPERATOR, "x", x_blc, state.dtype())?;
    check::shape(OPERATOR, "x", x_blc, [1, time, channels])?;
    if slot >= slots {
        return Err(check::wrong(OPERATOR, "state", state, format!("more than {slot} slots")));
    }
    let count = kept.min(time);
    let newest = state.view((slot * kept + kept - count) * channels, [count, channels])?;
    newest.copy_from(&x_blc.view((time - count) * channels, [count, channels])?)
}

/// Convolves one more token of the sequence of every slot, and adds it to the state.
///
/// * `x_blc [rows, 1, channels]`: row i is the next token of slot i. Rows beyond the slots give 0.
/// * `operands.documents`: minus the position of every row, modulo 2³². The state of a token at position 0 is
///   not read.
///
/// # Errors
/// As for [`forward`]; operands without documents, fewer rows than slots.
pub fn step(x_blc: &Tensor, operands: Operands<'_>, state: &Tensor) -> Result<Tensor> {
    const OPERATOR: &str = "causal_convolution.step";
    let width = operands.check(OPERATOR, x_blc)?;
    check::rank(OPERATOR, "state", state, 3)?;
    let slots = state.shape().dims()[0];
    let rows = x_blc.shape().rows();
    let channels = x_blc.shape().columns();
    check::dtype(OPERATOR, "state", state, x_blc.dtype())?;
    check::shape(OPERATOR, "state", state, [slots, width - 1, channels])?;
    if x_blc.shape().dims()[1] != 1 || rows < slots || operands.documents.is_none() {
        let expected = format!("[at least {slots}, 1, _] and positions");
        return Err(check::wrong(OPERATOR, "x", x_blc, expected));
    }
    let y_blc = x_blc.like(x_blc.dtype(), Request::new(Category::Activation, OPERATOR))?;
    match x_blc.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => operands.on_host(OPERATOR, x_blc, |operands| {
            operands.step(&x_blc.values()?, &mut state.values_mut()?, &mut y_blc.values_mut()?);
            Ok(())
        })?,
        Backend::Cuda => cuda::step(OPERATOR, x_blc, operands, state, &y_blc)?,
    }
    Ok(y_blc)
}
