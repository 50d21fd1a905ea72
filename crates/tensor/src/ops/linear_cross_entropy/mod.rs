//! The output head of a language model and its softmax cross-entropy, with scores computed in pieces.
//!
//! Scores, `x · weightᵀ`, of a large vocabulary are the largest tensor of a language model. Here they exist
//! for one piece of the vocabulary at a time: forward adds each piece to the largest score of every row and
//! the sum of exponentials, and backward computes each piece again and overwrites it with its gradient.

mod cpu;
pub(crate) mod cuda;
pub mod divided;
mod piece;
mod statistics;

use std::ops::Range;

use device::{Backend, Category, DType, Request};

pub use piece::Settings;
use piece::pieces;
pub use statistics::Statistics;

use super::{Activation, GradientTarget, cast, check, linear};
use crate::{Result, Tensor};

/// Operands of the loss.
#[derive(Clone, Debug)]
pub struct Operands {
    /// `[.., in]`, f32 or bf16.
    pub x: Tensor,
    /// `[vocabulary, in]` of the same type.
    pub weight: Tensor,
    /// Classes, u32, one for each row of `x`; a row of
    /// [`IGNORED`](super::cross_entropy::IGNORED) has no loss and no gradient.
    pub targets: Tensor,
}

/// Results of [`forward`].
#[derive(Clone, Debug)]
pub struct Output {
    /// scale · mean over rows that are not ignored of −ln softmax\[target\], a scalar f32; 0 if all are.
    pub loss: Tensor,
    /// Statistics for the backward pass.
    pub statistics: Statistics,
}

/// Rows of a matrix.
fn rows_of(matrix: &Tensor, rows: Range<usize>) -> Result<Tensor> {
    let columns = matrix.shape().columns();
    matrix.view(rows.start * columns, [rows.len(), columns])
}

/// Computes the loss of the scores `x · weightᵀ`.
///
/// # Errors
/// Shapes or types that do not agree, no row, a target outside the vocabulary (on a GPU it ends the process's
/// use of the device), out of memory.
pub fn forward(operands: &Operands, settings: &Settings) -> Result<Output> {
    const OPERATOR: &str = "linear_cross_entropy.forward";
    let (x, rows) = check(OPERATOR, operands)?;
    let (weight, targets) = (&operands.weight, &operands.targets);
    let (vocabulary, device) = (weight.shape().rows(), x.device());
    let request = Request::new(Category::Activation, OPERATOR);
    let loss = Tensor::empty(device, [], DType::F32, request)?;
    let statistics = Statistics {
        rows: Tensor::empty(device, [3, rows], DType::F32, request)?,
        counted: Tensor::empty(device, [], DType::U32, request)?,
    };
    if device.backend() == Backend::Cpu {
        cpu::count(OPERATOR, targets, vocabulary, &statistics.counted)?;
    }
    for piece in pieces(vocabulary, settings) {
        let weight = rows_of(weight, piece.first..piece.first + piece.classes)?;
        let scores = linear::forward(&x, &weight, None, Activation::None)?.output;
        match device.backend() {
            Backend::Meta => {}
            Backend::Cpu => cpu::join(&scores, targets, &statistics, piece)?,
            Backend::Cuda => cuda::join(OPERATOR, &scores, targets, &statistics, piece)?,
        }
    }
    match device.backend() {
        Backend::Meta => {}
        Backend::Cpu => cpu::mean(&statistics, settings.scale, &loss)?,
        Backend::Cuda => cuda::mean(OPERATOR, targets, &statistics, settings.scale, &loss)?,
    }
    Ok(Output { loss, statistics })
}

/// Computes the gradients of [`forward`] if the loss has the gradient `factor`, a scalar f32: that of `x` if
/// `input` is true, in its type after an f32 sum over the pieces, and that of the weight into `weight`, f32
/// or of its type.
///
/// # Errors
/// As [`forward`].
pub fn backward(
    operands: &Operands,
    statistics: &Statistics,
    settings: &Settings,
    factor: &Tensor,
    input: bool,
    weight: Option<&GradientTarget>,
) -> Result<Option<Tensor>> {
    const OPERATOR: &str = "linear_cross_entropy.backward";
    let (x, _) = check(OPERATOR, operands)?;
    check::f32s(OPERATOR, &[("factor", factor)])?;
    check::elements(OPERATOR, "factor", factor, 1)?;
    if let Some(weight) = weight {
        check::shape(OPERATOR, "weight gradient", &weight.tensor, operands.weight.shape())?;
    }
    let (device, dtype) = (x.device(), x.dtype());
    let request = Request::new(Category::ActivationGradient, OPERATOR);
    let sum = if input { Some(Tensor::empty(device, x.shape(), DType::F32, request)?) } else { None };
    for piece in pieces(operands.weight.shape().rows(), settings) {
        let classes = piece.first..piece.first + piece.classes;
        let matrix = rows_of(&operands.weight, classes.clone())?;
        let scores = match device.backend() {
            // The second computation does not count as the model's work.
            Backend::Meta => linear::forward_again(&x, &matrix, None)?.output,
            _ => linear::forward(&x, &matrix, None, Activation::None)?.output,
        };
        match device.backend() {
            Backend::Meta => {}
            Backend::Cpu => cpu::gradient(&scores, &operands.targets, statistics, piece, settings, factor)?,
            Backend::Cuda => {
                let targets = &operands.targets;
                cuda::gradient(OPERATOR, &scores, targets, statistics, piece, settings, factor)?;
            }
        }
        if let Some(sum) = &sum {
            linear::sum_backward_input(&scores, &matrix, sum, piece.first > 0)?;
        }
        if let Some(GradientTarget { tensor, accumulate }) = weight {
            let target = GradientTarget { tensor: rows_of(tensor, classes)?, accumulate: *accumulate };
            linear::backward_weight(&scores, &x, &target, None)?;
        }
    }
    let Some(sum) = sum else { return Ok(None) };
    let sum = sum.reshape(operands.x.shape())?;
    if dtype == DType::F32 {
        return Ok(Some(sum));
    }
    let rounded = Tensor::empty(device, sum.shape(), dtype, request)?;
    cast::into(&sum, &rounded)?;
    Ok(Some(rounded))
}

/// Returns `x` as a matrix, and its rows.
fn check(operator: &'static str, operands: &Operands) -> Result<(Tensor, usize)> {
    let Operands { x, weight, targets } = operands;
    check::computed(operator, &[("x", x), ("weight", weight)])?;
    check::dtype(operator, "targets", targets, DType::U32)?;
    check::not_empty(operator, "x", x)?;
    check::not_empty(operator, "weight", weight)?;
    let (_, inputs) = linear::matrix(operator, weight)?;
    check::shape(operator, "x", x, check::with_columns(x.shape(), inputs))?;
    let rows = x.shape().rows();
    check::elements(operator, "targets", targets, rows)?;
    Ok((x.reshape([rows, inputs])?, rows))
}
