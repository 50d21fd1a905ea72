//! Preference losses of pairs of answers (the preferred one first): DPO, IPO and ORPO.
//!
//! The operand is the loss −ln p of each target of sequences in pairs: the chosen answer, then the rejected
//! one. The result is the loss of the pairs with its statistics, and the weight of every row in it, from
//! which the gradient of the scores is computed.

mod cpu;
pub(crate) mod cuda;
mod objective;
mod operands;

use device::{Backend, Category, DType, Request};

pub use objective::Objective;
pub use operands::{Output, Sequences, VALUES};

use super::check;
use super::cross_entropy::Mean;
use crate::{Result, Tensor};

/// Computes ln p of each sequence's answer, f32 `[sequences]`: the sum of ln p over its targets.
pub fn scores(sequences: Sequences) -> Result<Tensor> {
    const OPERATOR: &str = "preference.scores";
    let count = check(OPERATOR, sequences)?;
    let device = sequences.losses.device();
    let scores = Tensor::empty(device, [count], DType::F32, Request::new(Category::Activation, OPERATOR))?;
    let sums = Tensor::workspace(device, OPERATOR, cuda::sum_bytes(count))?;
    match device.backend() {
        Backend::Meta => {}
        Backend::Cpu => cpu::scores(sequences, &scores)?,
        Backend::Cuda => cuda::scores(OPERATOR, sequences, &sums, &scores)?,
    }
    Ok(scores)
}

/// Computes `scale` times the mean loss of the pairs, its statistics, and the weights of rows.
///
/// `reference` are the [`scores`] of the answers by the reference model, f32 `[sequences]`; objectives
/// without a reference ignore it. If the objective also learns prompts and chosen answers, the loss of their
/// targets is `scale` times their mean, or their sum divided by `divisor`, one u32.
///
/// # Errors
/// Shapes or types that do not agree, an odd number of sequences, out of memory.
pub fn forward(
    sequences: Sequences,
    reference: Option<&Tensor>,
    objective: Objective,
    scale: f32,
    divisor: Option<&Tensor>,
) -> Result<Output> {
    const OPERATOR: &str = "preference.forward";
    let count = check(OPERATOR, sequences)?;
    if !count.is_multiple_of(2) {
        return Err(check::wrong(OPERATOR, "answers", sequences.answers, "pairs of sequences".to_owned()));
    }
    if let Some(reference) = reference {
        check::f32s(OPERATOR, &[("reference", reference)])?;
        check::elements(OPERATOR, "reference", reference, count)?;
    } else if objective.has_reference() {
        return Err(check::wrong(OPERATOR, "reference", sequences.answers, "one score each".to_owned()));
    }
    let learnt = Mean { scale: if divisor.is_some() { 1.0 } else { scale }, count: divisor };
    learnt.check(OPERATOR)?;
    let device = sequences.losses.device();
    let rows = sequences.losses.elements();
    let request = Request::new(Category::Activation, OPERATOR);
    let values = Tensor::empty(device, [VALUES], DType::F32, request)?;
    let weights = Tensor::empty(device, [rows], DType::F32, request)?;
    let workspace = Tensor::workspace(device, OPERATOR, cuda::sum_bytes(count))?;
    let output = Output { values, weights };
    match device.backend() {
        Backend::Meta => {}
        Backend::Cpu => cpu::forward(sequences, reference, (objective, scale), learnt, &output)?,
        Backend::Cuda => {
            let call = (objective, scale, learnt);
            cuda::forward(OPERATOR, sequences, reference, call, &workspace, &output)?;
        }
    }
    Ok(output)
}

fn check(operator: &'static str, sequences: Sequences) -> Result<usize> {
    let Sequences { losses, targets, answers } = sequences;
    check::f32s(operator, &[("losses", losses)])?;
    check::dtype(operator, "targets", targets, DType::U32)?;
    check::dtype(operator, "answers", answers, DType::U32)?;
    check::not_empty(operator, "answers", answers)?;
    let rows = targets.elements();
    let count = answers.elements();
    check::elements(operator, "losses", losses, rows)?;
    if rows == 0 || !rows.is_multiple_of(count) {
        return Err(check::wrong(operator, "targets", targets, format!("rows of {count} sequences")));
    }
    Ok(count)
}
