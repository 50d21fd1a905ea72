//! AdamW (Loshchilov and Hutter, *Decoupled Weight Decay Regularization*, 2019), as PyTorch's
//! `torch.optim.AdamW` computes it.

use device::Float;

use super::piece::UpdateOperands;
use crate::ops::step_state::Coefficients;

#[derive(Clone, Copy)]
pub(super) struct Constants {
    pub(super) beta1: f32,
    pub(super) beta2: f32,
    pub(super) epsilon: f32,
    pub(super) weight_decay: f32,
}

/// Returns the coefficients of update `count`, from 1, computed in f64 and rounded once: factor, keep, take1,
/// beta2, take2, root_correction, epsilon, step_size. `begin_adamw` of `kernels/optimizer.cu` computes the
/// same bits.
pub(super) fn coefficients(c: Constants, learning_rate: f32, count: u32, factor: f32) -> Coefficients {
    let rate = f64::from(learning_rate);
    let beta1 = f64::from(c.beta1);
    let beta2 = f64::from(c.beta2);
    let correction = |beta: f64| 1.0 - libm::pow(beta, f64::from(count));
    [
        factor,
        (1.0 - rate * f64::from(c.weight_decay)) as f32,
        (1.0 - beta1) as f32,
        c.beta2,
        (1.0 - beta2) as f32,
        correction(beta2).sqrt() as f32,
        c.epsilon,
        (rate / correction(beta1)) as f32,
    ]
}

/// Updates weights and both moments: the running means of gradients and of squared gradients.
#[inline(always)]
pub(super) fn update<G: Float>(piece: UpdateOperands<'_, G>, c: &Coefficients) {
    let [factor, keep, take1, beta2, take2, root_correction, epsilon, step_size] = *c;
    let keep = if piece.decay { keep } else { 1.0 };
    let [first, second] = piece.states;
    let values = piece.weight.iter_mut().zip(piece.gradient);
    for ((weight, gradient), (first, second)) in values.zip(first.iter_mut().zip(second)) {
        let gradient = gradient.to_f32() * factor;
        *first += take1 * (gradient - *first);
        *second = beta2 * *second + take2 * gradient * gradient;
        let root = second.sqrt() / root_correction + epsilon;
        *weight = *weight * keep - step_size * (*first / root);
    }
}
