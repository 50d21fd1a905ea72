//! A tensor times a number.

use device::parallel::{CHUNK, for_pieces, simd};

use super::check;
use crate::{Result, Tensor};

/// tensor *= factor, for f32 of any shape. Errors: another type.
pub fn in_place(tensor: &Tensor, factor: f32) -> Result<()> {
    check::f32s("scale.in_place", &[("tensor", tensor)])?;
    if tensor.device().is_meta() {
        return Ok(());
    }
    multiply(tensor, factor)
}

/// tensor *= factor, a factor that is on the device: an f32 tensor of one element. Errors: another type or count.
pub fn by(tensor: &Tensor, factor: &Tensor) -> Result<()> {
    check::f32s("scale.by", &[("tensor", tensor), ("factor", factor)])?;
    let factor = factor.reshape([1])?;
    if tensor.device().is_meta() {
        return Ok(());
    }
    let factor = factor.read::<f32>()?[0];
    multiply(tensor, factor)
}

fn multiply(tensor: &Tensor, factor: f32) -> Result<()> {
    for_pieces(&mut tensor.write::<f32>()?, CHUNK, |_, piece| {
        simd(|| piece.iter_mut().for_each(|value| *value *= factor));
    });
    Ok(())
}
