//! Vocabulary-parallel cross-entropy: the vocabulary is divided into equal runs of classes, which may be in
//! the memories of different ranks. Only statistics of rows are exchanged.

use device::{Backend, Category, DType, Request};

use super::piece::{VocabularySlice, pieces};
use super::{Gradients, Operands, Settings, Statistics, cpu, cuda};
use crate::ops::cross_entropy::Mean;
use crate::ops::{GradientTarget, check, padding};
use crate::{Result, Tensor};

/// A contiguous run of classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassRun {
    /// Index of the first class in the whole vocabulary.
    pub first: usize,
    /// Number of classes of the run.
    pub classes: usize,
    /// Number of classes of the whole vocabulary.
    pub vocabulary: usize,
}

impl ClassRun {
    fn piece(self, soft_cap: Option<f32>) -> VocabularySlice {
        let ClassRun { first, classes, vocabulary } = self;
        let soft_cap = soft_cap.unwrap_or(0.0);
        VocabularySlice { first, classes, vocabulary, is_fresh: true, is_last: false, soft_cap }
    }

    /// Returns the slices of the run, each with its first class in the run.
    fn pieces(self, settings: &Settings) -> impl Iterator<Item = (usize, VocabularySlice)> {
        pieces(self.classes, settings).map(move |piece| {
            let ClassRun { first, vocabulary, .. } = self;
            (piece.first, VocabularySlice { first: first + piece.first, vocabulary, is_last: false, ..piece })
        })
    }
}

/// Computes statistics of a run's `scores_tv [rows, classes]`, f32 or of a half type, into `statistics`, f32
/// `[3, rows]`: the largest score of each row, Σ e^(score − largest), and the score of the row's target, 0 if
/// another run has the target. The rows of scores may be padded
/// ([`forward_padded`](crate::ops::linear::forward_padded)).
///
/// # Errors
/// Shapes or types that do not agree, a target outside the vocabulary (on a GPU it ends the process's use of
/// the device).
pub fn statistics(
    scores_tv: &Tensor,
    targets_t: &Tensor,
    run: ClassRun,
    soft_cap: Option<f32>,
    statistics: &Tensor,
) -> Result<()> {
    const OPERATOR: &str = "cross_entropy.statistics";
    check_scores(OPERATOR, scores_tv, targets_t, run)?;
    check::f32s(OPERATOR, &[("statistics", statistics)])?;
    check::elements(OPERATOR, "statistics", statistics, 3 * targets_t.elements())?;
    let rows = statistics.reshape([3, targets_t.elements()])?;
    let device = scores_tv.device();
    let joined = Statistics { rows, counted: Tensor::workspace(device, OPERATOR, 0)?, weights: None };
    let piece = run.piece(soft_cap);
    match device.backend() {
        Backend::Meta => Ok(()),
        Backend::Cpu => cpu::join(scores_tv, targets_t, &joined, piece),
        Backend::Cuda => cuda::join(OPERATOR, scores_tv, targets_t, &joined, piece),
    }
}

/// Computes [`statistics`] of a run without storing its scores: they are computed from `operands`, one slice
/// of the vocabulary after another. The weight has a row for each class of the run.
pub fn statistics_of(
    operands: &Operands,
    run: ClassRun,
    settings: &Settings,
    statistics: &Tensor,
) -> Result<()> {
    const OPERATOR: &str = "cross_entropy.statistics_of";
    let (x, rows) = super::check(OPERATOR, operands)?;
    check::elements(OPERATOR, "weight", &operands.weight, run.classes * x.shape().columns())?;
    check::f32s(OPERATOR, &[("statistics", statistics)])?;
    check::elements(OPERATOR, "statistics", statistics, 3 * rows)?;
    let counted = Tensor::workspace(x.device(), OPERATOR, 0)?;
    let joined = Statistics { rows: statistics.reshape([3, rows])?, counted, weights: None };
    super::join(OPERATOR, (&x, operands), &joined, run.pieces(settings))
}

/// Computes the gradients of a run from `operands`, where the loss has the gradient `factor`. Returns the
/// input's gradient if `input`, an f32 term of a sum over runs. Adds the weight's gradient to `weight`, f32
/// or of the weight's type.
pub fn gradients_of(
    operands: &Operands,
    statistics: &Statistics,
    (run, settings): (ClassRun, &Settings),
    factor: &Tensor,
    input: bool,
    weight: Option<&GradientTarget>,
) -> Result<Option<Tensor>> {
    const OPERATOR: &str = "cross_entropy.gradients_of";
    let (x, _) = super::check(OPERATOR, operands)?;
    check::elements(OPERATOR, "weight", &operands.weight, run.classes * x.shape().columns())?;
    check::f32s(OPERATOR, &[("factor", factor)])?;
    check::elements(OPERATOR, "factor", factor, 1)?;
    if let Some(weight) = weight {
        check::shape(OPERATOR, "weight gradient", &weight.tensor, operands.weight.shape())?;
    }
    let gradients = Gradients { statistics, settings, factor, input, weight };
    gradients.of_pieces(OPERATOR, (&x, operands), run.pieces(settings))
}

/// Merges the [`statistics`] of all runs, `parts [runs, 3, rows]` in the order of their classes. Each run has
/// `classes` classes. Returns the scalar loss, f32, and the rows' statistics.
///
/// # Errors
/// Shapes or types that do not agree, a target outside the vocabulary, out of memory.
pub fn merge(parts: &Tensor, targets_t: &Tensor, classes: usize, mean: Mean<'_>) -> Result<super::Output> {
    let device = parts.device();
    let loss = Tensor::empty(device, [], DType::F32, Request::new(Category::Activation, MERGE))?;
    let rows = merge_rows(parts, targets_t, classes)?;
    let vocabulary = parts.shape().dims()[0] * classes;
    let statistics = super::new_statistics(MERGE, rows, (targets_t, vocabulary), mean)?;
    match device.backend() {
        Backend::Meta => {}
        Backend::Cpu => cpu::mean(&statistics, mean, &loss)?,
        Backend::Cuda => cuda::mean(MERGE, &statistics, mean.scale, &loss)?,
    }
    Ok(super::Output { loss, statistics })
}

const MERGE: &str = "cross_entropy.merge";

/// Merges statistics of rows as [`merge`] does, without the mean loss. Returns f32 `[3, rows]`
/// ([`Statistics::rows`]).
pub fn merge_rows(parts: &Tensor, targets_t: &Tensor, classes: usize) -> Result<Tensor> {
    check::f32s(MERGE, &[("parts", parts)])?;
    check::dtype(MERGE, "targets", targets_t, DType::U32)?;
    check::rank(MERGE, "parts", parts, 3)?;
    let runs = parts.shape().dims()[0];
    let rows = targets_t.elements();
    check::shape(MERGE, "parts", parts, [runs, 3, rows])?;
    let device = parts.device();
    let merged_3t = Tensor::empty(device, [3, rows], DType::F32, Request::new(Category::Activation, MERGE))?;
    match device.backend() {
        Backend::Meta => {}
        Backend::Cpu => {
            cpu::check_targets(MERGE, targets_t, runs * classes)?;
            cpu::merge(parts, targets_t, &merged_3t, classes)?;
        }
        Backend::Cuda => cuda::merge(MERGE, parts, targets_t, &merged_3t, classes)?,
    }
    Ok(merged_3t)
}

/// Replaces a run's scores by the gradient of `factor` (a scalar f32) · scale · mean loss.
pub fn gradient(
    scores_tv: &Tensor,
    targets_t: &Tensor,
    statistics: &Statistics,
    run: ClassRun,
    settings: &Settings,
    factor: &Tensor,
) -> Result<()> {
    const OPERATOR: &str = "cross_entropy.gradient";
    check_scores(OPERATOR, scores_tv, targets_t, run)?;
    check::f32s(OPERATOR, &[("factor", factor)])?;
    check::elements(OPERATOR, "factor", factor, 1)?;
    let piece = run.piece(settings.soft_cap);
    match scores_tv.device().backend() {
        Backend::Meta => Ok(()),
        Backend::Cpu => cpu::gradient(scores_tv, targets_t, statistics, piece, settings, factor),
        Backend::Cuda => cuda::gradient(OPERATOR, scores_tv, targets_t, statistics, piece, settings, factor),
    }
}

fn check_scores(operator: &'static str, scores_tv: &Tensor, targets_t: &Tensor, run: ClassRun) -> Result<()> {
    padding::check(operator, "scores", scores_tv, run.classes)?;
    check::computed(operator, &[("scores", scores_tv)])?;
    check::dtype(operator, "targets", targets_t, DType::U32)?;
    check::not_empty(operator, "scores", scores_tv)?;
    check::elements(operator, "targets", targets_t, scores_tv.shape().rows())
}
