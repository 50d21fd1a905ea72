//! Rearranged copies of arrays: transposed, sliced, repeated, joined.
//!
//! Reshapes and slices of the outermost dimension are views ([`Tensor::reshape`], [`Tensor::view`]) and take
//! no memory. The operators here copy.

pub(super) mod cuda;
mod words;

use device::parallel::CHUNK;
use device::{Backend, Category, Request};

use super::check;
use super::layout::{Layout, Sizes, sizes};
use crate::{Result, Shape, Tensor};

/// Returns `x` with two dimensions exchanged, f32 or bf16, in a new tensor.
pub fn transpose(x: &Tensor, one: usize, other: usize) -> Result<Tensor> {
    const OPERATOR: &str = "rearrange.transpose";
    let missing = || check::wrong(OPERATOR, "x", x, format!("dimensions {one} and {other}"));
    let shape = x.shape().exchanged(one, other).ok_or_else(missing)?;
    let mut from = Layout::dense(x.shape());
    from.strides.swap(one, other);
    let output = output(OPERATOR, x, shape)?;
    copy(OPERATOR, sizes(shape), (x, from), (&output, Layout::dense(shape)))?;
    Ok(output)
}

/// Returns elements `start..start + length` of dimension `axis` of `x`, f32 or bf16: a view for the outermost
/// dimension, else a new tensor.
pub fn slice(x: &Tensor, axis: usize, start: usize, length: usize) -> Result<Tensor> {
    const OPERATOR: &str = "rearrange.slice";
    let (from, shape) = part(OPERATOR, x, axis, start, length)?;
    if axis == 0 {
        return x.view(from.offset, shape);
    }
    let output = output(OPERATOR, x, shape)?;
    copy(OPERATOR, sizes(shape), (x, from), (&output, Layout::dense(shape)))?;
    Ok(output)
}

/// Computes the gradient of [`slice()`]: zeros of `shape` with `dy` where the slice was.
pub fn slice_backward(dy: &Tensor, shape: Shape, axis: usize, start: usize) -> Result<Tensor> {
    const OPERATOR: &str = "rearrange.slice_backward";
    let dtype = check::computed(OPERATOR, &[("dy", dy)])?;
    let request = Request::new(Category::ActivationGradient, OPERATOR);
    let dx = Tensor::zeros(dy.device(), shape, dtype, request)?;
    let length = dy.shape().dims().get(axis).copied().unwrap_or(0);
    let (to, own) = part(OPERATOR, &dx, axis, start, length)?;
    check::shape(OPERATOR, "dy", dy, own)?;
    copy(OPERATOR, sizes(own), (dy, Layout::dense(own)), (&dx, to))?;
    Ok(dx)
}

/// Joins arrays, f32 or bf16, along dimension `axis`. Their other sizes are equal.
///
/// # Errors
/// No arrays, shapes that do not agree, out of memory.
pub fn concatenate(parts: &[&Tensor], axis: usize) -> Result<Tensor> {
    const OPERATOR: &str = "rearrange.concatenate";
    let first =
        parts.first().ok_or(crate::TensorError::Count { operator: OPERATOR, actual: 0, expected: 1 })?;
    let length: usize = parts.iter().filter_map(|part| part.shape().dims().get(axis).copied()).sum();
    let no_axis = || check::wrong(OPERATOR, "parts", first, format!("a dimension {axis}"));
    let shape = first.shape().with(axis, length).ok_or_else(no_axis)?;
    let joined = output(OPERATOR, first, shape)?;
    let mut start = 0;
    for x in parts {
        let length = x.shape().dims().get(axis).copied().unwrap_or(0);
        let (to, own) = part(OPERATOR, &joined, axis, start, length)?;
        check::dtype(OPERATOR, "parts", x, joined.dtype())?;
        check::shape(OPERATOR, "parts", x, own)?;
        copy(OPERATOR, sizes(own), (x, Layout::dense(own)), (&joined, to))?;
        start += length;
    }
    Ok(joined)
}

/// Returns `x` broadcast to `shape`: dimensions of one element are repeated.
///
/// # Errors
/// Other sizes that do not agree, out of memory.
pub fn repeat(x: &Tensor, shape: Shape) -> Result<Tensor> {
    const OPERATOR: &str = "rearrange.repeat";
    let unequal = || check::wrong(OPERATOR, "x", x, format!("{shape}, or 1 where it is repeated"));
    let from = Layout::repeated(x.shape(), shape).ok_or_else(unequal)?;
    let output = output(OPERATOR, x, shape)?;
    copy(OPERATOR, sizes(shape), (x, from), (&output, Layout::dense(shape)))?;
    Ok(output)
}

fn output(operator: &'static str, x: &Tensor, shape: Shape) -> Result<Tensor> {
    let dtype = check::computed(operator, &[("x", x)])?;
    Tensor::empty(x.device(), shape, dtype, Request::new(Category::Activation, operator))
}

/// Returns the layout, within `x`, of elements `start..start + length` of dimension `axis`, and its shape.
fn part(
    operator: &'static str,
    x: &Tensor,
    axis: usize,
    start: usize,
    length: usize,
) -> Result<(Layout, Shape)> {
    let size = x.shape().dims().get(axis).copied().unwrap_or(0);
    let shape = x.shape().with(axis, length).filter(|_| start <= size && length <= size - start);
    let wrong =
        || check::wrong(operator, "x", x, format!("{length} elements from {start} in dimension {axis}"));
    let dense = Layout::dense(x.shape());
    Ok((Layout { offset: start * dense.strides[axis.min(3)], ..dense }, shape.ok_or_else(wrong)?))
}

/// Copies an array of `sizes` elements from one layout to another.
fn copy(operator: &'static str, sizes: Sizes, x: (&Tensor, Layout), out: (&Tensor, Layout)) -> Result<()> {
    match x.0.device().backend() {
        Backend::Meta => Ok(()),
        Backend::Cuda => cuda::copy(operator, sizes, x, out),
        Backend::Cpu => {
            let values = x.0.values()?;
            let mut target = out.0.values_mut()?;
            let count: usize = sizes.iter().product();
            let mut held = Vec::with_capacity(CHUNK.min(count));
            for first in (0..count).step_by(CHUNK) {
                let length = CHUNK.min(count - first);
                held.clear();
                x.1.visit_offsets(&sizes, first, length, |offset| held.push(values[offset]));
                let mut next = held.iter();
                out.1.visit_offsets(&sizes, first, length, |offset| {
                    target[offset] = next.next().copied().unwrap_or(0.0)
                });
            }
            Ok(())
        }
    }
}
