//! Launches of `kernels/preference.cu`.

use device::{Family, Function};

use super::cpu::LEAST_IMPROBABILITY;
use super::objective::Objective;
use super::operands::{Output, Sequences, VALUES};
use crate::ops::cross_entropy::{IGNORED, Mean};
use crate::ops::gpu;
use crate::ops::kernels::family;
use crate::{Result, Tensor};

/// f32 values per sequence: score, tokens, loss and number of all targets, and the weights of the answer's
/// rows and of all rows.
const SUMS: usize = 6;

pub(crate) static FAMILY: Family = family!(
    "preference",
    constants: &[
        gpu::THREADS_CONSTANT,
        ("IGNORED", IGNORED),
        ("SUMS", SUMS as u32),
        ("VALUES", VALUES as u32),
        ("LEAST_IMPROBABILITY", LEAST_IMPROBABILITY),
    ],
);

pub(super) fn sum_bytes(sequences: usize) -> usize {
    4 * SUMS * sequences
}

/// Computes the [`SUMS`] values of every sequence. The first is its score.
fn sum(operator: &'static str, sequences: Sequences, sums: &Tensor) -> Result<()> {
    let Sequences { losses, targets, answers } = sequences;
    let count = gpu::word(operator, answers.elements())?;
    let time = gpu::word(operator, targets.elements() / answers.elements())?;
    let launch = losses.device().kernel(Function::new(&FAMILY, "sequences")).read(losses);
    let launch = launch.read(targets).read(answers).write(sums).u32(time);
    let launch = launch.cost(gpu::bytes(&[losses, targets, sums]), 2 * losses.elements() as u64);
    Ok(launch.launch([count, 1, 1], gpu::THREADS)?)
}

/// Computes ln p of each answer.
pub(super) fn scores(
    operator: &'static str,
    sequences: Sequences,
    sums: &Tensor,
    scores: &Tensor,
) -> Result<()> {
    sum(operator, sequences, sums)?;
    let count = gpu::word(operator, scores.elements())?;
    let launch = scores.device().kernel(Function::new(&FAMILY, "scores")).read(sums);
    let launch = launch.write(scores).u32(count).cost(gpu::bytes(&[sums, scores]), 0);
    Ok(launch.launch([count.div_ceil(gpu::THREADS), 1, 1], gpu::THREADS)?)
}

/// Computes the loss of the pairs, its statistics, and the weights of rows.
pub(super) fn forward(
    operator: &'static str,
    sequences: Sequences,
    reference: Option<&Tensor>,
    (objective, scale, learnt): (Objective, f32, Mean<'_>),
    sums: &Tensor,
    output: &Output,
) -> Result<()> {
    sum(operator, sequences, sums)?;
    let Sequences { targets, answers, .. } = sequences;
    let (device, Output { values, weights }) = (targets.device(), output);
    let count = gpu::word(operator, answers.elements())?;
    let time = gpu::word(operator, targets.elements() / answers.elements())?;
    let (kind, parameter, smoothing) = objective.parameters();
    let launch = device.kernel(Function::new(&FAMILY, "pairs")).write(sums).read(reference);
    let launch = launch.read(learnt.count);
    let launch = launch.write(values).u32(count / 2).u32(kind).f32(parameter).f32(smoothing);
    let launch = launch.f32(scale).f32(learnt.scale).cost(gpu::bytes(&[sums, values]), 64 * u64::from(count));
    launch.launch([1, 1, 1], gpu::THREADS)?;
    let launch = device.kernel(Function::new(&FAMILY, "weights")).read(targets);
    let launch = launch.read(answers).read(sums).write(weights).u32(time);
    let launch = launch.cost(gpu::bytes(&[targets, weights]), targets.elements() as u64);
    Ok(launch.launch([count, 1, 1], gpu::THREADS)?)
}
