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
use piece::{Piece, pieces};
pub use statistics::Statistics;

use super::cross_entropy::Mean;
use super::cross_entropy::cuda::count_targets;
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
    /// The [`Mean`] over rows that are not ignored of −ln softmax\[target\], a scalar f32; 0 if all are.
    pub loss: Tensor,
    /// Statistics for the backward pass.
    pub statistics: Statistics,
}

fn rows_of(matrix: &Tensor, rows: Range<usize>) -> Result<Tensor> {
    let columns = matrix.shape().columns();
    matrix.view(rows.start * columns, [rows.len(), columns])
}

/// Computes the loss of the scores `x · weightᵀ`, a mean over rows that are not ignored, or with the divisor
/// `count` ([`Mean::count`]).
///
/// # Errors
/// Shapes or types that do not agree, no row, a target outside the vocabulary (on a GPU it ends the process's
/// use of the device), out of memory.
pub fn forward(operands: &Operands, settings: &Settings, count: Option<&Tensor>) -> Result<Output> {
    const OPERATOR: &str = "linear_cross_entropy.forward";
    let (x, rows) = check(OPERATOR, operands)?;
    let targets = &operands.targets;
    let vocabulary = operands.weight.shape().rows();
    let device = x.device();
    let request = Request::new(Category::Activation, OPERATOR);
    let loss = Tensor::empty(device, [], DType::F32, request)?;
    let rows = Tensor::empty(device, [3, rows], DType::F32, request)?;
    let mean = Mean { scale: settings.scale, count };
    let statistics = new_statistics(OPERATOR, rows, (targets, vocabulary), mean)?;
    join(
        OPERATOR,
        (&x, operands),
        &statistics,
        pieces(vocabulary, settings).map(|piece| (piece.first, piece)),
    )?;
    match device.backend() {
        Backend::Meta => {}
        Backend::Cpu => cpu::mean(&statistics, mean, &loss)?,
        Backend::Cuda => cuda::mean(OPERATOR, &statistics, mean.scale, &loss)?,
    }
    Ok(Output { loss, statistics })
}

/// Computes the gradients of [`forward`] if the loss has the gradient `factor`, a scalar f32: that of `x` if
/// `input` is true, in its type after an f32 sum over the pieces, and that of the weight into `weight`, f32
/// or of its type.
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
    let pieces = pieces(operands.weight.shape().rows(), settings).map(|piece| (piece.first, piece));
    let gradients = Gradients { statistics, settings, factor, input, weight };
    let Some(sum) = gradients.of_pieces(OPERATOR, (&x, operands), pieces)? else { return Ok(None) };
    if x.dtype() == DType::F32 {
        return Ok(Some(sum));
    }
    let request = Request::new(Category::ActivationGradient, OPERATOR);
    let rounded = Tensor::empty(x.device(), sum.shape(), x.dtype(), request)?;
    cast::into(&sum, &rounded)?;
    Ok(Some(rounded))
}

/// Returns statistics of which `rows` are to be computed, with the divisor of `mean`, which counts the
/// `targets` of `vocabulary` classes unless it has one.
///
/// # Errors
/// A target outside the vocabulary, on the CPU; a divisor that is not one u32; out of memory.
fn new_statistics(
    operator: &'static str,
    rows: Tensor,
    (targets, vocabulary): (&Tensor, usize),
    mean: Mean<'_>,
) -> Result<Statistics> {
    mean.check(operator)?;
    let device = rows.device();
    if device.backend() == Backend::Cpu {
        cpu::check_targets(operator, targets, vocabulary)?;
    }
    if let Some(count) = mean.count {
        return Ok(Statistics { rows, counted: count.clone(), weights: None });
    }
    let counted = Tensor::empty(device, [], DType::U32, Request::new(Category::Activation, operator))?;
    match device.backend() {
        Backend::Meta => {}
        Backend::Cpu => cpu::count(targets, &counted)?,
        Backend::Cuda => count_targets(operator, targets, &counted)?,
    }
    Ok(Statistics { rows, counted, weights: None })
}

/// Joins the scores of pieces, each with its first row of the weight, to the rows' statistics.
fn join(
    operator: &'static str,
    (x, operands): (&Tensor, &Operands),
    statistics: &Statistics,
    pieces: impl Iterator<Item = (usize, Piece)>,
) -> Result<()> {
    for (first, piece) in pieces {
        let weight = rows_of(&operands.weight, first..first + piece.classes)?;
        let scores = linear::forward(x, &weight, None, Activation::None)?.output;
        match x.device().backend() {
            Backend::Meta => {}
            Backend::Cpu => cpu::join(&scores, &operands.targets, statistics, piece)?,
            Backend::Cuda => cuda::join(operator, &scores, &operands.targets, statistics, piece)?,
        }
    }
    Ok(())
}

/// The operands of a backward pass besides those of the forward pass, and the gradients that it computes.
struct Gradients<'a> {
    statistics: &'a Statistics,
    settings: &'a Settings,
    factor: &'a Tensor,
    input: bool,
    weight: Option<&'a GradientTarget>,
}

impl Gradients<'_> {
    /// Computes the gradients of pieces, each with its first row of the weight; returns that of the input as
    /// an f32 sum over the pieces.
    fn of_pieces(
        &self,
        operator: &'static str,
        (x, operands): (&Tensor, &Operands),
        pieces: impl Iterator<Item = (usize, Piece)>,
    ) -> Result<Option<Tensor>> {
        let request = Request::new(Category::ActivationGradient, operator);
        let sum = match self.input {
            true => Some(x.like(DType::F32, request)?),
            false => None,
        };
        for (first, piece) in pieces {
            let classes = first..first + piece.classes;
            let matrix = rows_of(&operands.weight, classes.clone())?;
            let scores = self.of_scores(operator, (x, operands), &matrix, piece)?;
            if let Some(sum) = &sum {
                linear::sum_backward_input(&scores, &matrix, sum, first > 0)?;
            }
            if let Some(GradientTarget { tensor, accumulate }) = self.weight {
                let target = GradientTarget { tensor: rows_of(tensor, classes)?, accumulate: *accumulate };
                linear::backward_weight(&scores, x, &target, None)?;
            }
        }
        sum.map(|sum| sum.reshape(operands.x.shape())).transpose()
    }

    /// The gradient of the scores of a piece, whose rows of the weight are `matrix`.
    fn of_scores(
        &self,
        operator: &'static str,
        (x, operands): (&Tensor, &Operands),
        matrix: &Tensor,
        piece: Piece,
    ) -> Result<Tensor> {
        let Gradients { statistics, settings, factor, .. } = *self;
        let targets = &operands.targets;
        let scores = match x.device().backend() {
            // The second computation does not count as the model's work.
            Backend::Meta => linear::forward_again(x, matrix, None)?.output,
            _ => linear::forward(x, matrix, None, Activation::None)?.output,
        };
        match x.device().backend() {
            Backend::Meta => {}
            Backend::Cpu => cpu::gradient(&scores, targets, statistics, piece, settings, factor)?,
            Backend::Cuda => {
                cuda::gradient(operator, &scores, targets, statistics, piece, settings, factor)?;
            }
        }
        Ok(scores)
    }
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
