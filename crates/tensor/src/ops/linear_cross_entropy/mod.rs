//! The output head of a language model fused with softmax cross-entropy.
//!
//! The scores `x · weightᵀ` of a large vocabulary are the largest tensor of a language model. Here they exist
//! for one slice of the vocabulary at a time. Forward folds each slice into the largest score and the sum of
//! exponentials of every row. Backward recomputes each slice and overwrites it with its gradient.

mod cpu;
pub(crate) mod cuda;
pub mod divided;
mod piece;
mod statistics;

use std::ops::Range;

use device::{Backend, Category, DType, Request};

pub use piece::Settings;
use piece::{VocabularySlice, pieces};
pub use statistics::Statistics;

use super::cross_entropy::Mean;
use super::cross_entropy::cuda::count_targets;
use super::{GradientTarget, cast, check, linear};
use crate::{Result, Tensor};

/// Operands of the loss.
#[derive(Clone, Debug)]
pub struct Operands {
    /// Input of the head, `[.., in]`, f32 or bf16.
    pub x: Tensor,
    /// Weight of the head, `[vocabulary, in]`, of the input's type.
    pub weight: Tensor,
    /// Target classes, u32, one per row of `x`. Rows with target [`IGNORED`](super::cross_entropy::IGNORED)
    /// have no loss and no gradient.
    pub targets: Tensor,
}

/// Results of [`forward`].
#[derive(Clone, Debug)]
pub struct Output {
    /// The [`Mean`] of −ln softmax\[target\] over rows that are not ignored, a scalar f32; 0 if all rows are
    /// ignored.
    pub loss: Tensor,
    /// Statistics of the rows, for the backward pass.
    pub statistics: Statistics,
}

fn rows_of(matrix: &Tensor, rows: Range<usize>) -> Result<Tensor> {
    let columns = matrix.shape().columns();
    matrix.view(rows.start * columns, [rows.len(), columns])
}

/// Computes the loss of the scores `x_td · weightᵀ`: a mean over rows that are not ignored, or with the
/// divisor `count` ([`Mean::count`]).
///
/// # Errors
/// Shapes or types that do not agree, no row, a target outside the vocabulary (on a GPU it ends the process's
/// use of the device), out of memory.
pub fn forward(operands: &Operands, settings: &Settings, count: Option<&Tensor>) -> Result<Output> {
    const OPERATOR: &str = "linear_cross_entropy.forward";
    let (x_td, rows) = check(OPERATOR, operands)?;
    let targets_t = &operands.targets;
    let vocabulary = operands.weight.shape().rows();
    let device = x_td.device();
    let request = Request::new(Category::Activation, OPERATOR);
    let loss = Tensor::empty(device, [], DType::F32, request)?;
    let rows = Tensor::empty(device, [3, rows], DType::F32, request)?;
    let mean = Mean { scale: settings.scale, count };
    let statistics = new_statistics(OPERATOR, rows, (targets_t, vocabulary), mean)?;
    join(
        OPERATOR,
        (&x_td, operands),
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

/// Computes the gradients of [`forward`], where the loss has the gradient `factor`, a scalar f32. Returns the
/// gradient of `x_td` if `input`, summed over slices in f32 and rounded to its type. Adds the weight's
/// gradient to `weight_vd`, f32 or of the weight's type.
pub fn backward(
    operands: &Operands,
    statistics: &Statistics,
    settings: &Settings,
    factor: &Tensor,
    input: bool,
    weight_vd: Option<&GradientTarget>,
) -> Result<Option<Tensor>> {
    const OPERATOR: &str = "linear_cross_entropy.backward";
    let (x_td, _) = check(OPERATOR, operands)?;
    check::f32s(OPERATOR, &[("factor", factor)])?;
    check::elements(OPERATOR, "factor", factor, 1)?;
    if let Some(weight_vd) = weight_vd {
        check::shape(OPERATOR, "weight gradient", &weight_vd.tensor, operands.weight.shape())?;
    }
    let pieces = pieces(operands.weight.shape().rows(), settings).map(|piece| (piece.first, piece));
    let gradients = Gradients { statistics, settings, factor, input, weight: weight_vd };
    let Some(sum) = gradients.of_pieces(OPERATOR, (&x_td, operands), pieces)? else { return Ok(None) };
    if x_td.dtype() == DType::F32 {
        return Ok(Some(sum));
    }
    let request = Request::new(Category::ActivationGradient, OPERATOR);
    let rounded = Tensor::empty(x_td.device(), sum.shape(), x_td.dtype(), request)?;
    cast::into(&sum, &rounded)?;
    Ok(Some(rounded))
}

/// Allocates statistics of `rows` and computes the divisor of `mean`: its own count, or the number of
/// `targets` of `vocabulary` classes that are not ignored.
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

/// Computes the scores of all slices and folds them into the rows' statistics. Each slice comes with its
/// first row of the weight.
fn join(
    operator: &'static str,
    (x, operands): (&Tensor, &Operands),
    statistics: &Statistics,
    pieces: impl Iterator<Item = (usize, VocabularySlice)>,
) -> Result<()> {
    for (first, piece) in pieces {
        let weight = rows_of(&operands.weight, first..first + piece.classes)?;
        let scores = linear::forward_padded(x, &weight)?;
        match x.device().backend() {
            Backend::Meta => {}
            Backend::Cpu => cpu::join(&scores, &operands.targets, statistics, piece)?,
            Backend::Cuda => cuda::join(operator, &scores, &operands.targets, statistics, piece)?,
        }
    }
    Ok(())
}

/// Operands of a backward pass that the forward pass does not have, and its results.
struct Gradients<'a> {
    statistics: &'a Statistics,
    settings: &'a Settings,
    factor: &'a Tensor,
    input: bool,
    weight: Option<&'a GradientTarget>,
}

impl Gradients<'_> {
    /// Computes the gradients of all slices, each with its first row of the weight. Returns the input's
    /// gradient as an f32 sum over slices.
    fn of_pieces(
        &self,
        operator: &'static str,
        (x, operands): (&Tensor, &Operands),
        pieces: impl Iterator<Item = (usize, VocabularySlice)>,
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

    /// Computes the gradient of the scores of one slice, whose rows of the weight are `matrix`.
    fn of_scores(
        &self,
        operator: &'static str,
        (x, operands): (&Tensor, &Operands),
        matrix: &Tensor,
        piece: VocabularySlice,
    ) -> Result<Tensor> {
        let Gradients { statistics, settings, factor, .. } = *self;
        let targets = &operands.targets;
        let scores = match x.device().backend() {
            // The second computation does not count as the model's work.
            Backend::Meta => linear::forward_padded_again(x, matrix)?,
            _ => linear::forward_padded(x, matrix)?,
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

/// Checks the operands. Returns `x` as a matrix, and its number of rows.
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
