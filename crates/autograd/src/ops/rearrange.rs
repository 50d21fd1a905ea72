//! Reshapes, transposes, slices and concatenations of variables.
//!
//! A reshape and a slice of the outermost dimension are views. A transpose and a slice of an inner dimension
//! copy, because tensors are dense: every operator accepts every variable, and kernels read whole vectors.
//! [`matmul_transposed`](super::matmul_transposed) and broadcasting [`pair`](super::pair) need no copy.

use device::{Category, DType, Request};
use tensor::ops::rearrange;
use tensor::{Shape, Tensor};

use super::cast::autocast_all;
use super::{autocast, named, only};
use crate::error::{AutogradError, Result};
use crate::rule::{Rule, Saved, ValueGradients};
use crate::sharded::{Source, Var, map, map_all};
use crate::tape::Tape;

/// Backward of the operators of this file, which save no tensors.
#[derive(Debug)]
pub enum RearrangeRule {
    /// The input's shape, for [`reshape`].
    Reshape(Shape),
    /// The exchanged dimensions, for [`transpose`].
    Transpose(usize, usize),
    /// The position within the input, for [`slice()`].
    Slice {
        /// The input's shape.
        shape: Shape,
        /// The dimension.
        axis: usize,
        /// The first element.
        start: usize,
    },
    /// The positions of the parts, for [`concatenate`].
    Concatenate {
        /// The dimension.
        axis: usize,
        /// Size of each part in that dimension.
        lengths: Vec<usize>,
    },
    /// The positions of the parts, for [`split`].
    Split {
        /// The dimension.
        axis: usize,
        /// Shapes of the parts.
        shapes: Vec<Shape>,
    },
}

/// Returns a view with another shape of equally many elements.
///
/// # Errors
/// The number of elements differs.
pub fn reshape(tape: &Tape, x: Var, shape: impl Into<Shape>) -> Result<Var> {
    let shape = shape.into();
    map(tape, [x], |_, [x]| {
        let [x] = autocast(tape, "reshape", [x])?;
        tape.begin("reshape")?;
        let output = named("reshape", x.tensor().reshape(shape))?;
        let before = x.tensor().shape();
        tape.record_one(&[x.source()], output, || RearrangeRule::Reshape(before))
    })
}

/// Exchanges two dimensions of `x`.
pub fn transpose(tape: &Tape, x: Var, one: usize, other: usize) -> Result<Var> {
    map(tape, [x], |_, [x]| {
        let [x] = autocast(tape, "transpose", [x])?;
        tape.begin("transpose")?;
        let output = named("transpose", rearrange::transpose(x.tensor(), one, other))?;
        tape.record_one(&[x.source()], output, || RearrangeRule::Transpose(one, other))
    })
}

/// Returns elements `start` to `start + length` of dimension `axis`; a view for the outermost dimension.
pub fn slice(tape: &Tape, x: Var, axis: usize, start: usize, length: usize) -> Result<Var> {
    map(tape, [x], |_, [x]| {
        let [x] = autocast(tape, "slice", [x])?;
        tape.begin("slice")?;
        let output = named("slice", rearrange::slice(x.tensor(), axis, start, length))?;
        let shape = x.tensor().shape();
        tape.record_one(&[x.source()], output, || RearrangeRule::Slice { shape, axis, start })
    })
}

/// Concatenates variables along dimension `axis`.
pub fn concatenate(tape: &Tape, parts: &[Var], axis: usize) -> Result<Var> {
    map_all(tape, parts.to_vec(), |_, mut parts| {
        autocast_all(tape, "concatenate", &mut parts)?;
        tape.begin("concatenate")?;
        let tensors: Vec<&Tensor> = parts.iter().map(Var::tensor).collect();
        let output = named("concatenate", rearrange::concatenate(&tensors, axis))?;
        let sources: Vec<Source> = parts.iter().map(Var::source).collect();
        let length = |part: &Var| part.tensor().shape().dims().get(axis).copied().unwrap_or(0);
        let lengths = parts.iter().map(length).collect();
        tape.record_one(&sources, output, || RearrangeRule::Concatenate { axis, lengths })
    })
}

/// Splits `x` along dimension `axis` into parts of these lengths, which must add up to the dimension's size.
pub fn split(tape: &Tape, x: Var, axis: usize, lengths: &[usize]) -> Result<Vec<Var>> {
    map(tape, [x], |_, [x]| {
        let [x] = autocast(tape, "split", [x])?;
        tape.begin("split")?;
        let mut start = 0;
        let part = |length: &usize| {
            let part = rearrange::slice(x.tensor(), axis, start, *length);
            start += length;
            part
        };
        let parts = named("split", lengths.iter().map(part).collect::<tensor::Result<Vec<_>>>())?;
        let shapes = parts.iter().map(Tensor::shape).collect();
        tape.record(&[x.source()], parts, || RearrangeRule::Split { axis, shapes })
    })
}

/// Concatenates the gradients of the parts of [`split`]. The result is f32 if any part is; a part without a
/// gradient contributes zeros.
fn joined(parts: ValueGradients, axis: usize, shapes: &[Shape]) -> Result<Tensor> {
    let first = parts.iter().flatten().next().ok_or(AutogradError::NotRecorded)?;
    let is_wide = parts.iter().flatten().any(|part| part.dtype() == DType::F32);
    let device = first.device();
    let dtype = if is_wide { DType::F32 } else { first.dtype() };
    let request = Request::new(Category::ActivationGradient, "split");
    let of_type = |(part, shape): (&Option<Tensor>, &Shape)| match part {
        Some(part) if part.dtype() == dtype => Ok(part.clone()),
        Some(part) => {
            let wide = Tensor::empty(device, *shape, dtype, request)?;
            tensor::ops::cast::into(part, &wide).map(|()| wide)
        }
        None => Tensor::zeros(device, *shape, dtype, request),
    };
    let parts = parts.iter().zip(shapes).map(of_type).collect::<tensor::Result<Vec<_>>>()?;
    Ok(rearrange::concatenate(&parts.iter().collect::<Vec<_>>(), axis)?)
}

impl Rule for RearrangeRule {
    fn operator(&self) -> &'static str {
        match self {
            RearrangeRule::Reshape(_) => "reshape",
            RearrangeRule::Transpose(..) => "transpose",
            RearrangeRule::Slice { .. } => "slice",
            RearrangeRule::Concatenate { .. } => "concatenate",
            RearrangeRule::Split { .. } => "split",
        }
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        Vec::new()
    }

    fn backward_input(&mut self, outputs: ValueGradients, wanted: &[bool]) -> Result<ValueGradients> {
        if let RearrangeRule::Split { axis, shapes } = self {
            return Ok(vec![Some(joined(outputs, *axis, shapes)?)]);
        }
        let gradient = only(outputs)?;
        Ok(match self {
            RearrangeRule::Split { .. } => Vec::new(),
            RearrangeRule::Reshape(shape) => vec![Some(gradient.reshape(*shape)?)],
            RearrangeRule::Transpose(one, other) => {
                vec![Some(rearrange::transpose(&gradient, *one, *other)?)]
            }
            RearrangeRule::Slice { shape, axis, start } => {
                vec![Some(rearrange::slice_backward(&gradient, *shape, *axis, *start)?)]
            }
            RearrangeRule::Concatenate { axis, lengths } => {
                let mut start = 0;
                let mut part = |(length, wanted): (&usize, &bool)| -> Result<Option<Tensor>> {
                    let first = start;
                    start += length;
                    Ok(match wanted {
                        true => Some(rearrange::slice(&gradient, *axis, first, *length)?),
                        false => None,
                    })
                };
                lengths.iter().zip(wanted).map(&mut part).collect::<Result<_>>()?
            }
        })
    }
}
