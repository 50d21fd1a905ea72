//! Lion (Chen et al., *Symbolic Discovery of Optimization Algorithms*, 2023, algorithm 2): the sign of a
//! running mean of gradients.

use device::Float;

use super::piece::UpdateOperands;
use crate::ops::step_state::Coefficients;

/// Returns the coefficients of every update, computed in f64 and rounded once: factor, keep, learning_rate,
/// beta1, take1, beta2, take2. `begin_lion` of `kernels/optimizer.cu` computes the same bits.
pub(super) fn coefficients(
    [beta1, beta2]: [f32; 2],
    weight_decay: f32,
    learning_rate: f32,
    factor: f32,
) -> Coefficients {
    let rest = |beta: f32| (1.0 - f64::from(beta)) as f32;
    let keep = (1.0 - f64::from(learning_rate) * f64::from(weight_decay)) as f32;
    [factor, keep, learning_rate, beta1, rest(beta1), beta2, rest(beta2), 0.0]
}

/// Updates weights and the running mean of gradients, the rule's only state. If a weight's direction is 0,
/// only its decay is applied.
#[inline(always)]
pub(super) fn update<G: Float>(piece: UpdateOperands<'_, G>, c: &Coefficients) {
    let [factor, keep, learning_rate, beta1, take1, beta2, take2, _] = *c;
    let keep = if piece.decay { keep } else { 1.0 };
    let [momentum, _] = piece.states;
    for ((weight, gradient), momentum) in piece.weight.iter_mut().zip(piece.gradient).zip(momentum) {
        let gradient = gradient.to_f32() * factor;
        let direction = beta1 * *momentum + take1 * gradient;
        // NaN stays NaN.
        let sign = if direction == 0.0 { 0.0 } else { direction.signum() };
        *weight = *weight * keep - learning_rate * sign;
        *momentum = beta2 * *momentum + take2 * gradient;
    }
}
