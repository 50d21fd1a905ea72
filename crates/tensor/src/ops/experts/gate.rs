//! The gate or activation of experts. Each row is multiplied by the weight of its choice before the last
//! matmul, so that backward does not need that matmul's result.

use device::{Backend, Category, DType, Request};

use super::{ExpertFunction, cuda, plain};
use crate::ops::gate;
use crate::ops::routing::{NONE, Routes};
use crate::ops::{check, math};
use crate::{Result, Tensor};

/// Computes weight · gate of `pair_s2f [slots, 2 · width]` as `[slots, width]`, where the weight is the row's
/// routing weight. An activation without a gate takes `[slots, width]`.
///
/// # Errors
/// Another type, an odd number of columns for a gate, out of memory.
pub fn forward(pair_s2f: &Tensor, routes: &Routes, function: impl Into<ExpertFunction>) -> Result<Tensor> {
    const OPERATOR: &str = "experts.gate_forward";
    let gate = match function.into() {
        ExpertFunction::Gated(gate) => gate,
        ExpertFunction::Plain(activation) => return plain::forward(pair_s2f, routes, activation),
    };
    let hidden_sf = gate::forward(pair_s2f, gate)?;
    weigh(OPERATOR, &hidden_sf, routes)?;
    Ok(hidden_sf)
}

/// Allocates the output of [`forward`] without computing it, for recomputation, where nothing reads it.
pub fn forward_again(pair_s2f: &Tensor, function: impl Into<ExpertFunction>) -> Result<Tensor> {
    match function.into() {
        ExpertFunction::Gated(_) => gate::forward_again(pair_s2f),
        ExpertFunction::Plain(_) => plain::forward_again(pair_s2f),
    }
}

/// Replaces `pair_s2f` by its gradient, and `hidden_sf`, the output's gradient, by the recomputed output,
/// which the next layer's weight gradient reads. Returns the gradients of the rows' routing weights,
/// `[slots]` f32.
pub fn backward(
    pair_s2f: &Tensor,
    hidden_sf: &Tensor,
    routes: &Routes,
    function: impl Into<ExpertFunction>,
) -> Result<Tensor> {
    const OPERATOR: &str = "experts.gate_backward";
    let gate = match function.into() {
        ExpertFunction::Gated(gate) => gate,
        ExpertFunction::Plain(activation) => return plain::backward(pair_s2f, hidden_sf, routes, activation),
    };
    check::computed(OPERATOR, &[("pair", pair_s2f), ("hidden", hidden_sf)])?;
    check::shape(OPERATOR, "pair", pair_s2f, [routes.slots(), 2 * hidden_sf.shape().columns()])?;
    let request = Request::new(Category::ActivationGradient, OPERATOR);
    let gradients = Tensor::empty(pair_s2f.device(), [routes.slots()], DType::F32, request)?;
    if pair_s2f.device().backend() == Backend::Cpu {
        // Of the output without its weight.
        let output_gradient: Vec<f32> = hidden_sf.values()?.to_vec();
        weigh(OPERATOR, hidden_sf, routes)?;
        gate::backward(pair_s2f, hidden_sf, gate)?;
        let columns = hidden_sf.shape().columns();
        let output = hidden_sf.values()?;
        let rows = output.chunks_exact(columns).zip(output_gradient.chunks_exact(columns));
        for (gradient, (output, hidden)) in gradients.write::<f32>()?.iter_mut().zip(rows) {
            *gradient = math::sum2(output, hidden, |output, hidden| output * hidden);
        }
        drop(output);
        weigh(OPERATOR, hidden_sf, routes)?;
        return Ok(gradients);
    }
    if pair_s2f.device().backend() == Backend::Cuda {
        cuda::gate_dot(OPERATOR, (pair_s2f, hidden_sf), gate, &gradients)?;
        weigh(OPERATOR, hidden_sf, routes)?;
        gate::backward(pair_s2f, hidden_sf, gate)?;
        weigh(OPERATOR, hidden_sf, routes)?;
    }
    Ok(gradients)
}

/// Multiplies each row by the routing weight of its choice.
fn weigh(operator: &'static str, hidden: &Tensor, routes: &Routes) -> Result<()> {
    match hidden.device().backend() {
        Backend::Meta => Ok(()),
        Backend::Cpu => {
            let weights = routes.weights.read::<f32>()?;
            let sources = routes.sources.read::<u32>()?;
            let mut hidden_values = hidden.values_mut()?;
            let columns = hidden.shape().columns();
            for (row, source) in hidden_values.chunks_exact_mut(columns).zip(sources.iter()) {
                let weight = if *source == NONE { 0.0 } else { weights[*source as usize] };
                row.iter_mut().for_each(|value| *value *= weight);
            }
            Ok(())
        }
        Backend::Cuda => cuda::weigh(operator, hidden, routes),
    }
}
