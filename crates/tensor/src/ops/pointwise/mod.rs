//! Element-wise functions of one array, and of two arrays with broadcasting.

pub(super) mod cuda;
mod function;

pub use function::{Pair, Pointwise};
pub(super) use function::{soft_cap, soft_cap_slope};

use device::parallel::{CHUNK, for_pieces};
use device::{Backend, Category, Request};

use super::layout::{Layout, sizes};
use super::{check, rows};
use crate::{Result, Shape, Tensor};

/// Computes `function(x)` of every element, f32 or bf16, in a new tensor.
pub fn forward(x: &Tensor, function: Pointwise) -> Result<Tensor> {
    const OPERATOR: &str = "pointwise.forward";
    let dtype = check::computed(OPERATOR, &[("x", x)])?;
    let output = x.like(dtype, Request::new(Category::Activation, OPERATOR))?;
    match x.device().backend() {
        Backend::Meta => {}
        Backend::Cuda => cuda::forward(x, &output, function)?,
        Backend::Cpu => {
            let x: &[f32] = &x.values()?;
            for_pieces(&mut output.values_mut()?, CHUNK, |index, out| {
                let x = rows::piece(x, index, CHUNK);
                out.iter_mut().zip(x).for_each(|(out, x)| *out = function.value(*x));
            });
        }
    }
    Ok(output)
}

/// Computes the gradient of the input of [`forward`]: `dy · function'(x)`, in a new tensor.
pub fn backward(dy: &Tensor, x: &Tensor, function: Pointwise) -> Result<Tensor> {
    const OPERATOR: &str = "pointwise.backward";
    let dtype = check::computed(OPERATOR, &[("dy", dy), ("x", x)])?;
    check::shape(OPERATOR, "x", x, dy.shape())?;
    let dx = x.like(dtype, Request::new(Category::ActivationGradient, OPERATOR))?;
    match x.device().backend() {
        Backend::Meta => {}
        Backend::Cuda => cuda::backward(dy, x, &dx, function)?,
        Backend::Cpu => {
            let dy = dy.values()?;
            let x = x.values()?;
            let (dy, x): (&[f32], &[f32]) = (&dy, &x);
            for_pieces(&mut dx.values_mut()?, CHUNK, |index, out| {
                let both = rows::piece(dy, index, CHUNK).iter().zip(rows::piece(x, index, CHUNK));
                out.iter_mut().zip(both).for_each(|(out, (dy, x))| *out = dy * function.slope(*x));
            });
        }
    }
    Ok(dx)
}

/// Computes `function(a, b)` of every pair of elements, both f32 or both bf16, in a new tensor. The operands
/// have the same number of dimensions; a dimension of one element broadcasts to the other operand's size.
pub fn pair(a: &Tensor, b: &Tensor, function: Pair) -> Result<Tensor> {
    const OPERATOR: &str = "pointwise.pair";
    let dtype = check::computed(OPERATOR, &[("a", a), ("b", b)])?;
    let unequal = || check::wrong(OPERATOR, "b", b, format!("the sizes of {}, or 1", a.shape()));
    let shape = broadcast(a.shape(), b.shape()).ok_or_else(unequal)?;
    let layout_of = |x: &Tensor| Layout::repeated(x.shape(), shape).ok_or_else(unequal);
    let of_a = layout_of(a)?;
    let of_b = layout_of(b)?;
    let output = Tensor::empty(a.device(), shape, dtype, Request::new(Category::Activation, OPERATOR))?;
    match a.device().backend() {
        Backend::Meta => {}
        Backend::Cuda => cuda::pair(OPERATOR, (a, of_a), (b, of_b), &output, function)?,
        Backend::Cpu => {
            let a = a.values()?;
            let b = b.values()?;
            let sizes = sizes(shape);
            let (a, b): (&[f32], &[f32]) = (&a, &b);
            for_pieces(&mut output.values_mut()?, CHUNK, |index, out| {
                let mut left = out.iter_mut();
                of_a.visit_offsets(&sizes, index * CHUNK, left.len(), |offset| {
                    left.next().into_iter().for_each(|out| *out = a[offset]);
                });
                let mut right = out.iter_mut();
                of_b.visit_offsets(&sizes, index * CHUNK, right.len(), |offset| {
                    right.next().into_iter().for_each(|out| *out = function.value(*out, b[offset]));
                });
            });
        }
    }
    Ok(output)
}

/// Returns the shape to which two operands broadcast; `None` if they do not.
pub fn broadcast(a: Shape, b: Shape) -> Option<Shape> {
    if a.dims().len() != b.dims().len() {
        return None;
    }
    let mut shape = a;
    for (axis, (own, other)) in a.dims().iter().zip(b.dims()).enumerate() {
        shape = match (*own, *other) {
            (same, other) if same == other => shape,
            (1, other) => shape.with(axis, other)?,
            (_, 1) => shape,
            _ => return None,
        };
    }
    Some(shape)
}
