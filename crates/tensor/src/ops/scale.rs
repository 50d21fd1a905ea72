//! Multiplication of a tensor by a number.

use device::parallel::{CHUNK, for_pieces, simd};
use device::{Backend, Family, Function};

use super::check;
use super::elementwise::{self, Each};
use super::kernels::family;
use crate::{Result, Tensor};

pub(super) static FAMILY: Family =
    family!("scale", headers: ["elementwise.cuh"], constants: elementwise::CONSTANTS);

/// Multiplies an f32 or bf16 tensor of any shape by `factor`.
pub fn in_place(tensor: &Tensor, factor: f32) -> Result<()> {
    check::computed("scale.in_place", &[("tensor", tensor)])?;
    match tensor.device().backend() {
        Backend::Meta => Ok(()),
        Backend::Cpu => multiply(tensor, factor),
        Backend::Cuda => {
            let kernel = Function::new(&FAMILY, "in_place").with_dtype(tensor.dtype());
            Each { kernel, read: &[], write: tensor, updates: true, number: Some(factor) }.launch()
        }
    }
}

/// Multiplies `tensor` by `factor`, an f32 tensor of one element on the device.
pub fn by(tensor: &Tensor, factor: &Tensor) -> Result<()> {
    check::computed("scale.by", &[("tensor", tensor)])?;
    check::f32s("scale.by", &[("factor", factor)])?;
    let factor = factor.reshape([1])?;
    match tensor.device().backend() {
        Backend::Meta => Ok(()),
        Backend::Cpu => {
            let factor = factor.values()?[0];
            multiply(tensor, factor)
        }
        Backend::Cuda => {
            let kernel = Function::new(&FAMILY, "by").with_dtype(tensor.dtype());
            Each { kernel, read: &[&factor], write: tensor, updates: true, number: None }.launch()
        }
    }
}

fn multiply(tensor: &Tensor, factor: f32) -> Result<()> {
    for_pieces(&mut tensor.values_mut()?, CHUNK, |_, piece| {
        simd(|| piece.iter_mut().for_each(|value| *value *= factor));
    });
    Ok(())
}
