//! Scans of selective state spaces (Dao and Gu, *Transformers are SSMs*, 2024), as in Mamba-2.
//!
//! A head of some columns has a state with a row for each element of B and C. With dt = softplus(raw + bias)
//! within limits and A = −exp(a_log): state(t) = exp(dt·A) · state(t − 1) + dt · B ⊗ x, and y = C · state + d
//! · x. A state does not pass from one document to the next. Sequences are computed in chunks of a fixed
//! number of tokens: within a chunk by pairs of tokens, and from chunk to chunk by states, in order. States,
//! decays and all sums are f32. On GPUs of compute capability 9 to 11, with half types, matmuls run on tensor
//! cores: their operands are rounded to the type.

mod cpu;
pub(crate) mod cuda;
mod gradients;
mod heads;
mod operands;
mod workspace;

use device::{Backend, Category, DType, Request};

use super::{GradientTarget, check, columns};
use crate::{Result, Tensor};
pub use heads::StateHeads;
pub use operands::{Gradients, Operands};

/// Computes the scan of every sequence; the result is `[batch, time, heads · width]`.
///
/// `state` has the states of the first sequences, `[slots, heads, states, width]` f32, which the call
/// replaces by those after the last token. They are read for documents that start before the sequence;
/// without documents every sequence starts with zeros.
///
/// # Errors
/// Shapes or types that do not agree, groups that do not divide the heads, more states than sequences, out of
/// memory.
pub fn forward(operands: Operands<'_>, state: Option<&Tensor>) -> Result<Tensor> {
    const OPERATOR: &str = "state_space_scan.forward";
    operands.check(OPERATOR)?;
    state.map_or(Ok(()), |state| operands.check_state(OPERATOR, state))?;
    let xbc = operands.xbc;
    let request = Request::new(Category::Activation, OPERATOR);
    let y_blc = Tensor::empty(xbc.device(), operands.output_shape(), xbc.dtype(), request)?;
    let workspace = Tensor::workspace(xbc.device(), OPERATOR, workspace::forward_bytes(&operands))?;
    match xbc.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => operands.on_host(OPERATOR, |scan| {
            let mut state = state.map(Tensor::values_mut).transpose()?;
            scan.forward(state.as_deref_mut(), &mut y_blc.values_mut()?);
            Ok(())
        })?,
        Backend::Cuda => cuda::forward(OPERATOR, operands, state, &workspace, &y_blc)?,
    }
    Ok(y_blc)
}

/// Replaces the states before the first token by those after the last, as [`forward`] does, without the
/// output.
pub fn advance(operands: Operands<'_>, state: &Tensor) -> Result<()> {
    const OPERATOR: &str = "state_space_scan.advance";
    operands.check(OPERATOR)?;
    operands.check_state(OPERATOR, state)?;
    let device = operands.xbc.device();
    let workspace = Tensor::workspace(device, OPERATOR, workspace::advance_bytes(&operands))?;
    match device.backend() {
        Backend::Meta => Ok(()),
        Backend::Cpu => operands.on_host(OPERATOR, |scan| {
            scan.advance(&mut state.values_mut()?);
            Ok(())
        }),
        Backend::Cuda => cuda::advance(OPERATOR, operands, state, &workspace),
    }
}

/// Replaces `gradient`, that of the states after the last token, by that of the states before the first, from
/// the gradient of the output, `dy_blc`. Both are `[batch, heads, states, width]` f32.
pub fn retreat(dy_blc: &Tensor, operands: Operands<'_>, gradient: &Tensor) -> Result<()> {
    const OPERATOR: &str = "state_space_scan.retreat";
    operands.check(OPERATOR)?;
    operands.check_gradient(OPERATOR, dy_blc)?;
    operands.check_state(OPERATOR, gradient)?;
    let device = operands.xbc.device();
    let workspace = Tensor::workspace(device, OPERATOR, workspace::retreat_bytes(&operands))?;
    match device.backend() {
        Backend::Meta => Ok(()),
        Backend::Cpu => operands.on_host(OPERATOR, |scan| {
            scan.retreat(&dy_blc.values()?, &mut gradient.values_mut()?);
            Ok(())
        }),
        Backend::Cuda => cuda::retreat(OPERATOR, dy_blc, operands, &workspace, gradient),
    }
}

/// Computes the gradients of the inputs from that of the output, `dy_blc`, and partial sums of the gradients
/// of the weights. `states` are the states before the first token and the gradient of those after the last,
/// `[batch, heads, states, width]` f32, and the call overwrites both; without them the scan began with
/// zeros.
pub fn backward_input(
    dy_blc: &Tensor,
    operands: Operands<'_>,
    states: Option<[&Tensor; 2]>,
) -> Result<Gradients> {
    const OPERATOR: &str = "state_space_scan.backward_input";
    operands.check(OPERATOR)?;
    operands.check_gradient(OPERATOR, dy_blc)?;
    states.into_iter().flatten().try_for_each(|state| operands.check_state(OPERATOR, state))?;
    let Operands { xbc, dt, heads, .. } = operands;
    let device = xbc.device();
    let request = Request::new(Category::ActivationGradient, OPERATOR);
    let rows = xbc.shape().dims()[0] * operands.chunks();
    let result = Gradients {
        xbc: xbc.like(xbc.dtype(), request)?,
        dt: dt.like(dt.dtype(), request)?,
        sums: Tensor::empty(device, [rows, 3 * heads.heads], DType::F32, request)?,
    };
    let workspace = Tensor::workspace(device, OPERATOR, workspace::backward_bytes(&operands))?;
    match device.backend() {
        Backend::Meta => {}
        Backend::Cpu => operands.on_host(OPERATOR, |scan| {
            let mut targets = [result.xbc.values_mut()?, result.dt.values_mut()?, result.sums.values_mut()?];
            let [dxbc, ddt, sums] = &mut targets;
            let [first, last] = [0, 1].map(|part| states.map(|states| states[part]));
            let first = first.map(Tensor::values).transpose()?;
            let last = last.map(Tensor::values).transpose()?;
            let states = first.as_deref().zip(last.as_deref());
            scan.backward(&dy_blc.values()?, states, [dxbc, ddt, sums]);
            Ok(())
        })?,
        Backend::Cuda => cuda::backward_input(OPERATOR, (dy_blc, states), operands, &workspace, &result)?,
    }
    Ok(result)
}

/// Computes the gradients of `a_log`, `d` and `bias`, `[heads]` each, from the partial sums of
/// [`backward_input`]. The targets are all f32 or all of `computed`, the type of the activations.
pub fn backward_weight(sums: &Tensor, computed: DType, targets: [Option<&GradientTarget>; 3]) -> Result<()> {
    const OPERATOR: &str = "state_space_scan.backward_weight";
    check::f32s(OPERATOR, &[("sums", sums)])?;
    check::rank(OPERATOR, "sums", sums, 2)?;
    let heads = sums.shape().columns() / 3;
    let names = ["a_log", "d", "bias"];
    let named: Vec<_> = names.into_iter().zip(targets).filter_map(|(name, t)| Some((name, t?))).collect();
    check::targets(OPERATOR, computed, &named)?;
    named.iter().try_for_each(|(name, target)| check::shape(OPERATOR, name, &target.tensor, [heads]))?;
    match sums.device().backend() {
        Backend::Meta => Ok(()),
        Backend::Cpu => {
            let values = sums.values()?;
            let sums: &[f32] = &values;
            let rows = sums.len() / (3 * heads);
            for (part, target) in targets.into_iter().enumerate() {
                let Some(target) = target else { continue };
                let mut out = target.tensor.values_mut()?;
                columns::sum_rows(rows, &mut out, target.accumulate, |row, columns, partial| {
                    let sums = &sums[(3 * row + part) * heads..][columns];
                    partial.iter_mut().zip(sums).for_each(|(partial, sum)| *partial += sum);
                });
            }
            Ok(())
        }
        Backend::Cuda => cuda::backward_weight(OPERATOR, sums, targets),
    }
}
