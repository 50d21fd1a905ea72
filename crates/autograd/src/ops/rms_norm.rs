//! RMS normalisation, alone or fused with a residual addition.

use tensor::ops;
use tensor::ops::rms_norm::Settings as NormSettings;

use super::norm_rule::{NormRule, of_pass, record_residual, residual_operands};
use super::{autocast, named};
use crate::error::Result;
use crate::sharded::{TensorRanks, Var, map};
use crate::tape::Tape;
use crate::weight::Weight;

/// Normalises the rows of `x [.., width]`; `weight` is `[width]`.
pub fn rms_norm(tape: &Tape, x: Var, weight: &Weight, settings: impl Into<NormSettings>) -> Result<Var> {
    let settings = of_pass(tape, settings);
    map(tape, [x], |_, [x]| {
        const OPERATOR: &str = "rms_norm";
        let [x] = autocast(tape, OPERATOR, [x])?;
        tape.begin(OPERATOR)?;
        let scale = named(OPERATOR, weight.values(x.tensor().dtype()))?;
        let forward = ops::rms_norm::forward(x.tensor(), &scale, settings);
        let ops::rms_norm::Output { output, rstd } = named(OPERATOR, forward)?;
        let rule = || NormRule {
            operator: OPERATOR,
            x: x.tensor().clone(),
            mean: None,
            rstd,
            weight: weight.clone(),
            bias: None,
            gradient: None,
            measures: settings.measures,
            ranks: TensorRanks::new(tape, false),
        };
        tape.record_one(&[x.source()], output, rule)
    })
}

/// Returns (sum, normalised): `sum = residual + branch`, or the residual itself without a branch, and its
/// normalisation. Later operators should read the sum from this pair. The backward kernel then adds both
/// gradients with one rounding, whether or not a pipeline boundary removed the branch.
pub fn residual_rms_norm(
    tape: &Tape,
    residual: Var,
    branch: Option<Var>,
    weight: &Weight,
    settings: impl Into<NormSettings>,
) -> Result<(Var, Var)> {
    let settings = of_pass(tape, settings);
    match branch {
        Some(branch) => map(tape, [residual, branch], |_, [residual, branch]| {
            residual_block(tape, residual, Some(branch), weight, settings)
        }),
        None => map(tape, [residual], |_, [residual]| residual_block(tape, residual, None, weight, settings)),
    }
}

/// [`residual_rms_norm`] of one block.
fn residual_block(
    tape: &Tape,
    residual: Var,
    branch: Option<Var>,
    weight: &Weight,
    settings: NormSettings,
) -> Result<(Var, Var)> {
    const OPERATOR: &str = "residual_rms_norm";
    let (residual, branch) = residual_operands(tape, OPERATOR, residual, branch)?;
    tape.begin(OPERATOR)?;
    let values = residual.tensor();
    let scale = &named(OPERATOR, weight.values(values.dtype()))?;
    let forward = match &branch {
        Some(branch) => ops::rms_norm::forward_residual(values, branch.tensor(), scale, settings),
        None => ops::rms_norm::forward(values, scale, settings).map(|output| (values.clone(), output)),
    };
    let (sum, ops::rms_norm::Output { output, rstd }) = named(OPERATOR, forward)?;
    let rule = || NormRule {
        operator: OPERATOR,
        x: sum.clone(),
        mean: None,
        rstd,
        weight: weight.clone(),
        bias: None,
        gradient: None,
        measures: settings.measures,
        ranks: TensorRanks::new(tape, false),
    };
    let sources: Vec<_> = std::iter::once(&residual).chain(&branch).map(Var::source).collect();
    record_residual(tape, &sources, sum.clone(), output, rule)
}
