//! Folding of a norm into a convolution on the host.

use device::parallel::for_pieces;

use super::norm::Norm;
use crate::{Result, Tensor};

/// Computes folded = weight · scale, and bias = the norm's bias − mean · scale.
pub(super) fn fold(weight: &Tensor, norm: Norm<'_>, folded: &Tensor, bias: &Tensor) -> Result<()> {
    let mean = norm.mean.read::<f32>()?;
    let variance = norm.variance.read::<f32>()?;
    let norm_weight = norm.weight.values()?;
    let norm_bias = norm.bias.values()?;
    let scales: Vec<f32> = norm_weight
        .iter()
        .zip(variance.iter())
        .map(|(weight, variance)| weight * (1.0 / (variance + norm.epsilon).sqrt()))
        .collect();
    for (channel, bias) in bias.values_mut()?.iter_mut().enumerate() {
        *bias = (-mean[channel]).mul_add(scales[channel], norm_bias[channel]);
    }
    let weight = weight.values()?;
    let weight: &[f32] = &weight;
    let window = weight.len() / scales.len().max(1);
    for_pieces(&mut folded.values_mut()?, window.max(1), |channel, folded| {
        let weight = &weight[channel * window..][..window];
        folded.iter_mut().zip(weight).for_each(|(folded, weight)| *folded = weight * scales[channel]);
    });
    Ok(())
}
