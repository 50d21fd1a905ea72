//! Sums of two tensors.

use device::parallel::{CHUNK, for_pieces, simd};
use device::{Backend, Category, Family, Float, Function, Request, StreamKind, dispatch};

use super::elementwise::{self, Each};
use super::kernels::family;
use super::{check, rows};
use crate::{Result, Tensor};

pub(super) static FAMILY: Family =
    family!("add", headers: ["elementwise.cuh"], constants: elementwise::CONSTANTS);

/// Returns a + b in a new tensor. The operands have one shape, and are both f32 or both bf16.
pub fn forward(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    const OPERATOR: &str = "add.forward";
    let dtype = check::computed(OPERATOR, &[("a", a), ("b", b)])?;
    check::shape(OPERATOR, "b", b, a.shape())?;
    let output = a.like(dtype, Request::new(Category::Activation, OPERATOR))?;
    match a.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => forward_on_host(&a.values()?, &b.values()?, &mut output.values_mut()?),
        Backend::Cuda => on_gpu(a, b, &output, StreamKind::Compute)?,
    }
    Ok(output)
}

/// Computes target += source, rounded to their type. The operands have one shape, are both f32 or both bf16,
/// and do not overlap.
///
/// # Errors
/// Shapes or types that do not agree, memory that overlaps.
pub fn into(target: &Tensor, source: &Tensor) -> Result<()> {
    into_on(target, source, StreamKind::Compute)
}

/// Computes [`into`] on the stream `stream`.
pub fn into_on(target: &Tensor, source: &Tensor, stream: StreamKind) -> Result<()> {
    const OPERATOR: &str = "add.into";
    check::computed(OPERATOR, &[("target", target), ("source", source)])?;
    check::shape(OPERATOR, "source", source, target.shape())?;
    match target.device().backend() {
        Backend::Meta => Ok(()),
        Backend::Cpu => {
            dispatch!(
                target.dtype(),
                T => into_on_host::<T>(&source.read()?, &mut target.write()?),
                _ => return Err(check::unsupported(OPERATOR, "target", target)),
            );
            Ok(())
        }
        Backend::Cuda => on_gpu(target, source, target, stream),
    }
}

fn on_gpu(a: &Tensor, b: &Tensor, out: &Tensor, stream: StreamKind) -> Result<()> {
    let kernel = Function::new(&FAMILY, "add").with_dtype(out.dtype());
    Each { kernel, read: &[a, b], write: out, updates: false, number: None }.launch_on(stream)
}

pub(super) fn forward_on_host(a: &[f32], b: &[f32], out: &mut [f32]) {
    for_pieces(out, CHUNK, |index, out| {
        let a = rows::piece(a, index, CHUNK);
        let b = rows::piece(b, index, CHUNK);
        simd(|| {
            for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
                *out = a + b;
            }
        });
    });
}

fn into_on_host<T: Float>(source: &[T], target: &mut [T]) {
    let sum = |a: T, b: T| T::from_f32(a.to_f32() + b.to_f32());
    for_pieces(target, CHUNK, |index, out| {
        let source = rows::piece(source, index, CHUNK);
        simd(|| out.iter_mut().zip(source).for_each(|(out, source)| *out = sum(*out, *source)));
    });
}
