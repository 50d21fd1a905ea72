//! Constant values.

use device::parallel::{CHUNK, for_pieces};
use device::{Backend, DType, Element};
use half::bf16;
use half::slice::HalfFloatSliceExt;

use super::check;
use super::elementwise::Each;
use crate::{Result, Tensor};

/// Values that are made on the host at a time: tasks enough for all of its processors.
pub(crate) const PIECE: usize = 1 << 20;

/// Sets every element of an f32 or bf16 tensor to `value`. Errors: another type.
pub fn constant(target: &Tensor, value: f32) -> Result<()> {
    check::computed("fill.constant", &[("target", target)])?;
    if target.device().backend() == Backend::Cuda {
        let names = ["fill_f32", "fill_bf16"];
        return Each { names, read: &[], write: target, updates: false, number: Some(value) }.launch();
    }
    in_pieces(target, |_, values| values.fill(value))
}

/// Fills an f32 or bf16 tensor from the host, [`PIECE`] elements at a time: `make(first element, values)`, which are
/// rounded to its type.
pub(crate) fn in_pieces(target: &Tensor, make: impl Fn(usize, &mut [f32])) -> Result<()> {
    if target.device().is_meta() {
        return Ok(());
    }
    let mut values = vec![0.0f32; PIECE.min(target.elements())];
    let mut rounded = Vec::new();
    for first in (0..target.elements()).step_by(PIECE) {
        let values = &mut values[..PIECE.min(target.elements() - first)];
        make(first, values);
        if target.dtype() == DType::Bf16 {
            rounded.resize(values.len(), bf16::ZERO);
            for_pieces(&mut rounded, CHUNK, |index, rounded| {
                rounded.convert_from_f32_slice(&values[index * CHUNK..][..rounded.len()]);
            });
            copy(target, first, &rounded)?;
        } else {
            copy(target, first, values)?;
        }
    }
    Ok(())
}

fn copy<T: Element>(target: &Tensor, first: usize, values: &[T]) -> Result<()> {
    let region = target.region().part(first * size_of::<T>(), size_of_val(values));
    Ok(target.device().copy_from_host(values, region)?)
}
