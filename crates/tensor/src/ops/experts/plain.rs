//! The activation of experts without a gate. Each row is multiplied by the weight of its choice too, so that
//! backward does not need the result of the last matmul.

use device::parallel::{for_tasks, simd};
use device::{Backend, Category, DType, Request};

use super::cuda;
use crate::ops::activation::{Elementary, with_function};
use crate::ops::routing::{NONE, Routes};
use crate::ops::{Activation, check, math, rows};
use crate::{Result, Tensor};

/// Computes weight · activation(x) of `x_sf [slots, width]`, where the weight is the row's routing weight.
pub(super) fn forward(x_sf: &Tensor, routes: &Routes, activation: Activation) -> Result<Tensor> {
    const OPERATOR: &str = "experts.activation_forward";
    let hidden_sf = forward_again(x_sf)?;
    check::shape(OPERATOR, "x", x_sf, [routes.slots(), x_sf.shape().columns()])?;
    match x_sf.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => {
            let columns = x_sf.shape().columns();
            let weights_s = slot_weights(routes)?;
            let x = x_sf.values()?;
            let mut hidden = hidden_sf.values_mut()?;
            let count = rows::per_task(columns);
            let tasks = hidden.chunks_mut(count * columns).zip(x.chunks(count * columns));
            let tasks = tasks.zip(weights_s.chunks(count)).collect();
            for_tasks(tasks, |((hidden, x), weights): ((&mut [f32], &[f32]), &[f32])| {
                let rows = hidden.chunks_exact_mut(columns).zip(x.chunks_exact(columns)).zip(weights);
                with_function!(activation, F => simd(|| rows.for_each(|((hidden, x), weight)| {
                    hidden.iter_mut().zip(x).for_each(|(hidden, x)| *hidden = F::value(*x) * weight);
                })));
            });
        }
        Backend::Cuda => cuda::activate(OPERATOR, x_sf, routes, activation, &hidden_sf)?,
    }
    Ok(hidden_sf)
}

/// Allocates the output of [`forward`] without computing it, for recomputation, where nothing reads it.
pub(super) fn forward_again(x_sf: &Tensor) -> Result<Tensor> {
    const OPERATOR: &str = "experts.activation_forward";
    let dtype = check::computed(OPERATOR, &[("x", x_sf)])?;
    x_sf.like(dtype, Request::new(Category::Activation, OPERATOR))
}

/// Replaces `x_sf` by its gradient, and `hidden_sf`, the output's gradient, by the recomputed output. Returns
/// the gradients of the rows' routing weights, `[slots]` f32.
pub(super) fn backward(
    x_sf: &Tensor,
    hidden_sf: &Tensor,
    routes: &Routes,
    activation: Activation,
) -> Result<Tensor> {
    const OPERATOR: &str = "experts.activation_backward";
    check::computed(OPERATOR, &[("x", x_sf), ("hidden", hidden_sf)])?;
    check::shape(OPERATOR, "x", x_sf, [routes.slots(), hidden_sf.shape().columns()])?;
    let request = Request::new(Category::ActivationGradient, OPERATOR);
    let gradients_s = Tensor::empty(x_sf.device(), [routes.slots()], DType::F32, request)?;
    match x_sf.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => {
            let columns = x_sf.shape().columns();
            let weights_s = slot_weights(routes)?;
            let mut x = x_sf.values_mut()?;
            let mut hidden = hidden_sf.values_mut()?;
            let mut gradients = gradients_s.write::<f32>()?;
            let count = rows::per_task(columns);
            let values = x.chunks_mut(count * columns).zip(hidden.chunks_mut(count * columns));
            let numbers = gradients.chunks_mut(count).zip(weights_s.chunks(count));
            for_tasks(values.zip(numbers).collect(), |task: Task<'_>| {
                with_function!(activation, F => simd(|| backward_rows::<F>(task, columns)));
            });
        }
        Backend::Cuda => {
            cuda::activate_gradient(OPERATOR, [x_sf, hidden_sf], routes, activation, &gradients_s)?
        }
    }
    Ok(gradients_s)
}

/// Some rows of x and of the output's gradient, with the gradients of their weights and the weights.
type Task<'a> = ((&'a mut [f32], &'a mut [f32]), (&'a mut [f32], &'a [f32]));

#[inline(always)]
fn backward_rows<F: Elementary>(((x, hidden), (gradients, weights)): Task<'_>, columns: usize) {
    let rows = x.chunks_exact_mut(columns).zip(hidden.chunks_exact_mut(columns));
    for ((x, hidden), (gradient, weight)) in rows.zip(gradients.iter_mut().zip(weights)) {
        *gradient = math::sum2(x, hidden, |x, slope| F::value(x) * slope);
        for (x, hidden) in x.iter_mut().zip(hidden) {
            let value = F::value(*x);
            (*x, *hidden) = (F::gradient(*hidden * weight, *x), value * weight);
        }
    }
}

/// Returns the routing weight of each row; 0 for a row that fills a gap.
fn slot_weights(routes: &Routes) -> Result<Vec<f32>> {
    let weights = routes.weights.read::<f32>()?;
    let sources = routes.sources.read::<u32>()?;
    let weight = |source: &u32| if *source == NONE { 0.0 } else { weights[*source as usize] };
    Ok(sources.iter().map(weight).collect())
}
