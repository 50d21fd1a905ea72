//! Sums of two tensors.

use device::parallel::{CHUNK, for_pieces, simd};
use device::{Category, DType, Request};

use super::{check, rows};
use crate::{Result, Tensor};

/// a + b in a new tensor, for f32 operands of one shape. Errors: shapes or types that do not agree, out of memory.
pub fn forward(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    const OPERATOR: &str = "add.forward";
    check::f32s(OPERATOR, &[("a", a), ("b", b)])?;
    check::shape(OPERATOR, "b", b, a.shape())?;
    let output =
        Tensor::empty(a.device(), a.shape(), DType::F32, Request::new(Category::Activation, OPERATOR))?;
    if a.device().is_meta() {
        return Ok(output);
    }
    let (a, b) = (a.read::<f32>()?, b.read::<f32>()?);
    let (a, b): (&[f32], &[f32]) = (&a, &b);
    for_pieces(&mut output.write::<f32>()?, CHUNK, |index, out| {
        let (a, b) = (rows::piece(a, index, CHUNK), rows::piece(b, index, CHUNK));
        simd(|| {
            for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
                *out = a + b;
            }
        });
    });
    Ok(output)
}

/// target += source, rounded to their type, for f32 operands of one shape that do not overlap.
/// Errors: shapes or types that do not agree, memory that overlaps.
pub fn into(target: &Tensor, source: &Tensor) -> Result<()> {
    const OPERATOR: &str = "add.into";
    check::f32s(OPERATOR, &[("target", target), ("source", source)])?;
    check::shape(OPERATOR, "source", source, target.shape())?;
    if target.device().is_meta() {
        return Ok(());
    }
    let source = source.read::<f32>()?;
    let source: &[f32] = &source;
    for_pieces(&mut target.write::<f32>()?, CHUNK, |index, out| {
        let source = rows::piece(source, index, CHUNK);
        simd(|| out.iter_mut().zip(source).for_each(|(out, source)| *out += source));
    });
    Ok(())
}
