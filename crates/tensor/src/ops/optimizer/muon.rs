//! Muon (Jordan and others, *Muon: An optimizer for hidden layers in neural networks*, 2024), as
//! `torch.optim.Muon` computes it, in two rules: [`momentum`] computes the direction of every element, and
//! after [`orthogonalise`](crate::ops::orthogonalise) has replaced the directions of each matrix, [`step`]
//! updates weights by them.

use device::Float;

use super::piece::UpdateOperands;
use crate::ops::step_state::Coefficients;

/// Returns the coefficients of every momentum update: factor, momentum, take. `begin_muon` of
/// `kernels/optimizer.cu` computes the same bits.
pub(super) fn momentum_coefficients(momentum: f32, factor: f32) -> Coefficients {
    let take = (1.0 - f64::from(momentum)) as f32;
    [factor, momentum, take, 0.0, 0.0, 0.0, 0.0, 0.0]
}

/// Updates the running mean of gradients, the rule's only state. Writes Nesterov's direction, the mean moved
/// once more towards the gradient, over the weights.
#[inline(always)]
pub(super) fn momentum<G: Float>(piece: UpdateOperands<'_, G>, c: &Coefficients) {
    let [factor, momentum, take, ..] = *c;
    let [mean, _] = piece.states;
    for ((direction, gradient), mean) in piece.weight.iter_mut().zip(piece.gradient).zip(mean) {
        let taken = take * (gradient.to_f32() * factor);
        *mean = momentum * *mean + taken;
        *direction = momentum * *mean + taken;
    }
}

/// Returns the coefficients of a step: keep, learning_rate, computed in f64 and rounded once.
pub(super) fn step_coefficients(weight_decay: f32, learning_rate: f32) -> Coefficients {
    let keep = (1.0 - f64::from(learning_rate) * f64::from(weight_decay)) as f32;
    [keep, learning_rate, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
}

/// Updates weights by the directions that stand in for gradients.
#[inline(always)]
pub(super) fn step<G: Float>(piece: UpdateOperands<'_, G>, c: &Coefficients) {
    let [keep, learning_rate, ..] = *c;
    let keep = if piece.decay { keep } else { 1.0 };
    for (weight, direction) in piece.weight.iter_mut().zip(piece.gradient) {
        *weight = *weight * keep - learning_rate * direction.to_f32();
    }
}
