//! Mean squared error.

use device::parallel::{CHUNK, for_pieces, map, simd};
use device::{Category, DType, Request};

use super::math::sum2_f64;
use super::{check, rows};
use crate::{Result, Tensor};

/// scale · mean of (prediction − target)², a scalar f32, for f32 operands of one shape.
/// Errors: shapes or types that do not agree, no element, out of memory.
pub fn forward(prediction: &Tensor, target: &Tensor, scale: f32) -> Result<Tensor> {
    const OPERATOR: &str = "mse.forward";
    check_operands(OPERATOR, prediction, target)?;
    let request = Request::new(Category::Activation, OPERATOR);
    let loss = Tensor::empty(prediction.device(), [], DType::F32, request)?;
    if prediction.device().is_meta() {
        return Ok(loss);
    }
    let (a, b) = (prediction.read::<f32>()?, target.read::<f32>()?);
    let (a, b): (&[f32], &[f32]) = (&a, &b);
    let partial = map(a.len().div_ceil(CHUNK), |index| {
        let (a, b) = (rows::piece(a, index, CHUNK), rows::piece(b, index, CHUNK));
        simd(
            #[inline(always)]
            || sum2_f64(a, b, |a, b| (a - b) * (a - b)),
        )
    });
    let total: f64 = partial.iter().sum();
    loss.set(&[(f64::from(scale) * total / a.len() as f64) as f32])?;
    Ok(loss)
}

/// The gradient of [`forward`]'s result by `prediction`: 2 · scale · (prediction − target) / elements.
/// Errors: as [`forward`].
pub fn backward(prediction: &Tensor, target: &Tensor, scale: f32) -> Result<Tensor> {
    const OPERATOR: &str = "mse.backward";
    check_operands(OPERATOR, prediction, target)?;
    let request = Request::new(Category::ActivationGradient, OPERATOR);
    let gradient = Tensor::empty(prediction.device(), prediction.shape(), DType::F32, request)?;
    if prediction.device().is_meta() {
        return Ok(gradient);
    }
    let factor = (2.0 * f64::from(scale) / prediction.elements() as f64) as f32;
    let (a, b) = (prediction.read::<f32>()?, target.read::<f32>()?);
    let (a, b): (&[f32], &[f32]) = (&a, &b);
    for_pieces(&mut gradient.write::<f32>()?, CHUNK, |index, out| {
        let (a, b) = (rows::piece(a, index, CHUNK), rows::piece(b, index, CHUNK));
        simd(|| {
            for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
                *out = factor * (a - b);
            }
        });
    });
    Ok(gradient)
}

fn check_operands(operator: &'static str, prediction: &Tensor, target: &Tensor) -> Result<()> {
    check::f32s(operator, &[("prediction", prediction), ("target", target)])?;
    check::shape(operator, "target", target, prediction.shape())?;
    check::not_empty(operator, "prediction", prediction)
}
