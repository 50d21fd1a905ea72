//! Rearranged variables: reshaped, transposed, sliced, joined.
//!
//! A reshape and a slice of the outermost dimension are views. A transpose and a slice of an inner dimension
//! copy: tensors are dense, so that every operator takes every variable, and kernels read whole vectors.
//! [`matmul_transposed`](super::matmul_transposed) and broadcasting [`pair`](super::pair) need no copy.

use tensor::ops::rearrange;
use tensor::{Shape, Tensor};

use super::cast::autocast_all;
use super::{autocast, named, only};
use crate::error::Result;
use crate::rule::{Rule, Saved};
use crate::tape::{Source, Tape, Var};

/// Backward of the operators of this file, which save nothing.
#[derive(Debug)]
pub enum RearrangeRule {
    /// The input's shape, for [`reshape`].
    Reshape(Shape),
    /// The dimensions, for [`transpose`].
    Transpose(usize, usize),
    /// The position in the input, for [`slice()`].
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
        /// Elements of each part in that dimension.
        lengths: Vec<usize>,
    },
}

/// Returns a view of the same elements in another shape of as many.
///
/// # Errors
/// Another count.
pub fn reshape(tape: &Tape, x: Var, shape: impl Into<Shape>) -> Result<Var> {
    let [x] = autocast(tape, "reshape", [x])?;
    tape.begin("reshape")?;
    let output = named("reshape", x.tensor().reshape(shape))?;
    let before = x.tensor().shape();
    tape.record_one(&[x.source()], output, || RearrangeRule::Reshape(before))
}

/// Returns `x` with two dimensions exchanged.
///
/// # Errors
/// As [`rearrange::transpose`].
pub fn transpose(tape: &Tape, x: Var, one: usize, other: usize) -> Result<Var> {
    let [x] = autocast(tape, "transpose", [x])?;
    tape.begin("transpose")?;
    let output = named("transpose", rearrange::transpose(x.tensor(), one, other))?;
    tape.record_one(&[x.source()], output, || RearrangeRule::Transpose(one, other))
}

/// Returns elements `start` to `start + length` of dimension `axis`; a view for the outermost.
///
/// # Errors
/// As [`rearrange::slice`].
pub fn slice(tape: &Tape, x: Var, axis: usize, start: usize, length: usize) -> Result<Var> {
    let [x] = autocast(tape, "slice", [x])?;
    tape.begin("slice")?;
    let output = named("slice", rearrange::slice(x.tensor(), axis, start, length))?;
    let shape = x.tensor().shape();
    tape.record_one(&[x.source()], output, || RearrangeRule::Slice { shape, axis, start })
}

/// Joins variables along dimension `axis`.
///
/// # Errors
/// As [`rearrange::concatenate`].
pub fn concatenate(tape: &Tape, parts: &[Var], axis: usize) -> Result<Var> {
    let mut parts = parts.to_vec();
    autocast_all(tape, "concatenate", &mut parts)?;
    tape.begin("concatenate")?;
    let tensors: Vec<&Tensor> = parts.iter().map(Var::tensor).collect();
    let output = named("concatenate", rearrange::concatenate(&tensors, axis))?;
    let sources: Vec<Source> = parts.iter().map(Var::source).collect();
    let length = |part: &Var| part.tensor().shape().dims().get(axis).copied().unwrap_or(0);
    let lengths = parts.iter().map(length).collect();
    tape.record_one(&sources, output, || RearrangeRule::Concatenate { axis, lengths })
}

impl Rule for RearrangeRule {
    fn operator(&self) -> &'static str {
        match self {
            RearrangeRule::Reshape(_) => "reshape",
            RearrangeRule::Transpose(..) => "transpose",
            RearrangeRule::Slice { .. } => "slice",
            RearrangeRule::Concatenate { .. } => "concatenate",
        }
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        Vec::new()
    }

    fn backward_input(
        &mut self,
        outputs: Vec<Option<Tensor>>,
        wanted: &[bool],
    ) -> Result<Vec<Option<Tensor>>> {
        let gradient = only(outputs)?;
        Ok(match self {
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
