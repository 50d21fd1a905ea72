//! Stochastic gradient descent with momentum, as PyTorch's `torch.optim.SGD` computes it without dampening or
//! Nesterov momentum.

use device::Float;

use super::piece::UpdateOperands;
use crate::ops::step_state::Coefficients;

/// Returns the coefficients of update `count`, from 1: factor, learning_rate, momentum, weight_decay, first.
/// `first` is 1 at the first update, where the velocity becomes the gradient, else 0.
pub(super) fn coefficients(
    momentum: f32,
    weight_decay: f32,
    learning_rate: f32,
    count: u32,
    factor: f32,
) -> Coefficients {
    let first = if count == 1 { 1.0 } else { 0.0 };
    [factor, learning_rate, momentum, weight_decay, first, 0.0, 0.0, 0.0]
}

#[inline(always)]
pub(super) fn update<G: Float>(piece: UpdateOperands<'_, G>, c: &Coefficients) {
    let [factor, learning_rate, _, weight_decay, ..] = *c;
    let weight_decay = if piece.decay { weight_decay } else { 0.0 };
    for (weight, gradient) in piece.weight.iter_mut().zip(piece.gradient) {
        *weight -= learning_rate * (gradient.to_f32() * factor + weight_decay * *weight);
    }
}

/// Updates weights and the velocity, the rule's only state.
#[inline(always)]
pub(super) fn update_with_momentum<G: Float>(piece: UpdateOperands<'_, G>, c: &Coefficients) {
    let [factor, learning_rate, momentum, weight_decay, first, ..] = *c;
    let weight_decay = if piece.decay { weight_decay } else { 0.0 };
    let [velocity, _] = piece.states;
    let first = first != 0.0;
    for ((weight, gradient), velocity) in piece.weight.iter_mut().zip(piece.gradient).zip(velocity) {
        let gradient = gradient.to_f32() * factor + weight_decay * *weight;
        *velocity = if first { gradient } else { momentum * *velocity + gradient };
        *weight -= learning_rate * *velocity;
    }
}
