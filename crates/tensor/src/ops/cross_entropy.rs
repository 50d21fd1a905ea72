//! Softmax cross-entropy of class scores, with its gradient in the same pass.
//!
//! The gradient, scale · (softmax − one-hot) / rows, is written over the scores, so that no probabilities are
//! ever stored beside them: the scores are the largest tensor of a language model.

use device::parallel::{for_tasks, map, simd};
use device::{Category, DType, Request};

use super::math::{exp, map_and_sum, max, sum};
use super::{check, rows};
use crate::{Result, Tensor};

/// What [`forward`] gives.
#[derive(Clone, Debug)]
pub struct Output {
    /// scale · mean over rows of −ln softmax[target], a scalar f32.
    pub loss: Tensor,
    /// The gradient of `loss` by the scores, of their shape.
    pub gradient: Option<Tensor>,
}

/// `logits [.., vocab]` f32 and `targets` u32 of the shape without `vocab`. With `with_gradient` the gradient
/// is written over `logits` when nothing else looks at their storage, else into a new tensor.
/// Errors: shapes or types that do not agree, no row, a target outside 0..vocab, out of memory.
pub fn forward(logits: Tensor, targets: &Tensor, scale: f32, with_gradient: bool) -> Result<Output> {
    const OPERATOR: &str = "cross_entropy.forward";
    check::f32s(OPERATOR, &[("logits", &logits)])?;
    check::dtype(OPERATOR, "targets", targets, DType::U32)?;
    check::not_empty(OPERATOR, "logits", &logits)?;
    let (rows, vocab) = (logits.shape().rows(), logits.shape().columns());
    if targets.elements() != rows {
        return Err(check::wrong(OPERATOR, "targets", targets, format!("{rows} elements")));
    }
    let device = logits.device().clone();
    let loss = Tensor::empty(&device, [], DType::F32, Request::new(Category::Activation, OPERATOR))?;
    let in_place = logits.is_unique();
    let gradient = match (with_gradient, in_place) {
        (false, _) => None,
        (true, true) => Some(logits.clone()),
        (true, false) => {
            let request = Request::new(Category::ActivationGradient, OPERATOR);
            Some(Tensor::empty(&device, logits.shape(), DType::F32, request)?)
        }
    };
    if device.is_meta() {
        return Ok(Output { loss, gradient });
    }
    let targets = targets.read::<u32>()?;
    check::indices(OPERATOR, &targets, vocab)?;
    let total = match &gradient {
        None => losses(&logits.read()?, &targets, vocab),
        Some(gradient) => {
            if !in_place {
                gradient.copy_from(&logits)?;
            }
            losses_and_gradient(&mut gradient.write::<f32>()?, &targets, vocab, scale / rows as f32)
        }
    };
    loss.set(&[(f64::from(scale) * total / rows as f64) as f32])?;
    Ok(Output { loss, gradient })
}

/// Σ over rows of −ln softmax[target].
fn losses(logits: &[f32], targets: &[u32], vocab: usize) -> f64 {
    let rows = rows::per_task(vocab);
    let partial = map(targets.len().div_ceil(rows), |index| {
        let (logits, targets) = (rows::piece(logits, index, rows * vocab), rows::piece(targets, index, rows));
        simd(
            #[inline(always)]
            || {
                let mut losses = 0.0;
                for (row, target) in logits.chunks_exact(vocab).zip(targets) {
                    let largest = max(row);
                    let total = sum(row, |x| exp(x - largest));
                    losses += loss(row[*target as usize], largest, total);
                }
                losses
            },
        )
    });
    partial.iter().sum()
}

/// The same, and every row of `logits` becomes weight · (softmax − one-hot).
fn losses_and_gradient(logits: &mut [f32], targets: &[u32], vocab: usize, weight: f32) -> f64 {
    let rows = rows::per_task(vocab);
    let mut partial = vec![0.0f64; targets.len().div_ceil(rows)];
    let pieces = logits.chunks_mut(rows * vocab).zip(targets.chunks(rows));
    let tasks = pieces.zip(partial.iter_mut()).collect();
    for_tasks(tasks, |((logits, targets), partial): ((&mut [f32], &[u32]), &mut f64)| {
        simd(
            #[inline(always)]
            || {
                for (row, target) in logits.chunks_exact_mut(vocab).zip(targets) {
                    let target = *target as usize;
                    let (score, largest) = (row[target], max(row));
                    let total = map_and_sum(row, |x| exp(x - largest));
                    *partial += loss(score, largest, total);
                    let factor = weight / total;
                    row.iter_mut().for_each(|x| *x *= factor);
                    row[target] -= weight;
                }
            },
        );
    });
    partial.iter().sum()
}

/// −ln softmax[target] from the target's score, the largest score and Σ e^(score − largest).
#[inline(always)]
fn loss(score: f32, largest: f32, total: f32) -> f64 {
    libm::log(f64::from(total)) + (f64::from(largest) - f64::from(score))
}
