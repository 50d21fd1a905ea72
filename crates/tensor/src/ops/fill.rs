//! Constant values.

use std::ops::Range;

use device::parallel::{CHUNK, for_pieces};
use device::{Backend, Element, Family, Float, Function, dispatch};

use super::elementwise::{self, Each};
use super::kernels::family;
use super::{check, rows};
use crate::{Result, Tensor};

pub(super) static FAMILY: Family =
    family!("fill", headers: ["elementwise.cuh"], constants: elementwise::CONSTANTS);

/// Elements computed on the host at a time, enough to occupy all processors.
pub(crate) const PIECE: usize = 1 << 20;

/// Sets every element of an f32 or bf16 tensor to `value`.
pub fn constant(target: &Tensor, value: f32) -> Result<()> {
    check::computed("fill.constant", &[("target", target)])?;
    if target.device().backend() == Backend::Cuda {
        let kernel = Function::new(&FAMILY, "constant").with_dtype(target.dtype());
        return Each { kernel, read: &[], write: target, updates: false, number: Some(value) }.launch();
    }
    in_pieces(target, |_, values| values.fill(value))
}

/// Sets the elements of an f32 or bf16 tensor, which holds the ranges `elements` of an array one after
/// another, to `value` of their index in the array.
pub fn computed(target: &Tensor, elements: &[Range<usize>], value: impl Fn(usize) -> f32) -> Result<()> {
    check::computed("fill.computed", &[("target", target)])?;
    let indices: Vec<usize> = elements.iter().cloned().flatten().collect();
    check::elements("fill.computed", "target", target, indices.len())?;
    in_pieces(target, |first, values| {
        values.iter_mut().zip(&indices[first..]).for_each(|(element, index)| *element = value(*index));
    })
}

/// Fills a tensor from the host, [`PIECE`] elements at a time. `make(first, values)` computes the values from
/// element `first` on, which are then rounded to the tensor's type.
///
/// # Errors
/// A type that is not floating-point.
pub(crate) fn in_pieces(target: &Tensor, make: impl Fn(usize, &mut [f32])) -> Result<()> {
    if target.device().is_meta() {
        return Ok(());
    }
    dispatch!(
        target.dtype(),
        T => rounded_in_pieces::<T>(target, make),
        _ => Err(check::unsupported("fill", "target", target)),
    )
}

fn rounded_in_pieces<T: Float>(target: &Tensor, make: impl Fn(usize, &mut [f32])) -> Result<()> {
    let length = PIECE.min(target.elements());
    let mut values = vec![0.0f32; length];
    let mut rounded = vec![T::zeroed(); length];
    for first in (0..target.elements()).step_by(PIECE) {
        let length = PIECE.min(target.elements() - first);
        let values = &mut values[..length];
        let rounded = &mut rounded[..length];
        make(first, values);
        for_pieces(rounded, CHUNK, |index, rounded| T::round(rows::piece(values, index, CHUNK), rounded));
        copy(target, first, rounded)?;
    }
    Ok(())
}

fn copy<T: Element>(target: &Tensor, first: usize, values: &[T]) -> Result<()> {
    let region = target.region().part(first * size_of::<T>(), size_of_val(values));
    Ok(target.device().copy_from_host(values, region)?)
}
