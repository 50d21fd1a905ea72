//! The gate of experts. Each row is multiplied by the weight of its choice before the last matmul, so that
//! backward does not need that matmul's result.

use device::{Backend, Category, DType, Request};

use super::cuda;
use crate::ops::gate::{self, Gate};
use crate::ops::routing::{NONE, Routes};
use crate::ops::{check, math};
use crate::{Result, Tensor};

/// Computes weight · gate of `pair [slots, 2 · width]` as `[slots, width]`, where the weight is the row's
/// routing weight.
///
/// # Errors
/// Another type, an odd number of columns, out of memory.
pub fn forward(pair: &Tensor, routes: &Routes, gate: Gate) -> Result<Tensor> {
    const OPERATOR: &str = "experts.gate_forward";
    let hidden = gate::forward(pair, gate)?;
    weigh(OPERATOR, &hidden, routes)?;
    Ok(hidden)
}

/// Replaces `pair` by its gradient, and `hidden`, the output's gradient, by the recomputed output, which the
/// next layer's weight gradient reads. Returns the gradients of the rows' routing weights, `[slots]` f32.
pub fn backward(pair: &Tensor, hidden: &Tensor, routes: &Routes, gate: Gate) -> Result<Tensor> {
    const OPERATOR: &str = "experts.gate_backward";
    check::computed(OPERATOR, &[("pair", pair), ("hidden", hidden)])?;
    check::shape(OPERATOR, "pair", pair, [routes.slots(), 2 * hidden.shape().columns()])?;
    let request = Request::new(Category::ActivationGradient, OPERATOR);
    let gradients = Tensor::empty(pair.device(), [routes.slots()], DType::F32, request)?;
    if pair.device().backend() == Backend::Cpu {
        // Of the output without its weight.
        let output_gradient: Vec<f32> = hidden.values()?.to_vec();
        weigh(OPERATOR, hidden, routes)?;
        gate::backward(pair, hidden, gate)?;
        let columns = hidden.shape().columns();
        let output = hidden.values()?;
        let rows = output.chunks_exact(columns).zip(output_gradient.chunks_exact(columns));
        for (gradient, (output, hidden)) in gradients.write::<f32>()?.iter_mut().zip(rows) {
            *gradient = math::sum2(output, hidden, |output, hidden| output * hidden);
        }
        drop(output);
        weigh(OPERATOR, hidden, routes)?;
        return Ok(gradients);
    }
    if pair.device().backend() == Backend::Cuda {
        cuda::gate_dot(OPERATOR, (pair, hidden), gate, &gradients)?;
        weigh(OPERATOR, hidden, routes)?;
        gate::backward(pair, hidden, gate)?;
        weigh(OPERATOR, hidden, routes)?;
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
