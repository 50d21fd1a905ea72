//! RMS normalisation, alone or fused with a residual addition.

use tensor::ops;
use tensor::ops::rms_norm::Settings as NormSettings;

use super::norm_rule::{NormRule, of_pass, record_residual, residual_operands};
use super::{autocast, named};
use crate::error::Result;
use crate::sharded::{TensorRanks, Var, map};
use crate::tape::Tape;
use crate::weight::Weight;

/// Normalises the rows of `x_td [.., width]`; `weight` is `[width]`.
pub fn rms_norm(tape: &Tape, x_td: Var, weight: &Weight, settings: impl Into<NormSettings>) -> Result<Var> {
    let settings = of_pass(tape, settings);
    map(tape, [x_td], |_, [x_td]| {
        const OPERATOR: &str = "rms_norm";
        let [x_td] = autocast(tape, OPERATOR, [x_td])?;
        tape.begin(OPERATOR)?;
        let scale = named(OPERATOR, weight.values(x_td.tensor().dtype()))?;
        let forward = ops::rms_norm::forward(x_td.tensor(), &scale, settings);
        let ops::rms_norm::Output { output: output_td, rstd: rstd_t } = named(OPERATOR, forward)?;
        let rule = || NormRule {
            operator: OPERATOR,
            x: x_td.tensor().clone(),
            mean: None,
            rstd: rstd_t,
            weight: weight.clone(),
            bias: None,
            gradient: None,
            measures: settings.measures,
            ranks: TensorRanks::new(tape, false),
        };
        tape.record_one(&[x_td.source()], output_td, rule)
    })
}

/// Returns (sum, normalised): `sum = residual + branch`, or the residual itself without a branch, and its
/// normalisation. Later operators should read the sum from this pair. The backward kernel then adds both
/// gradients with one rounding, whether or not a pipeline boundary removed the branch.
pub fn residual_rms_norm(
    tape: &Tape,
    residual_td: Var,
    branch_td: Option<Var>,
    weight: &Weight,
    settings: impl Into<NormSettings>,
) -> Result<(Var, Var)> {
    let settings = of_pass(tape, settings);
    match branch_td {
        Some(branch_td) => map(tape, [residual_td, branch_td], |_, [residual_td, branch_td]| {
            residual_block(tape, residual_td, Some(branch_td), weight, settings)
        }),
        None => map(tape, [residual_td], |_, [residual_td]| {
            residual_block(tape, residual_td, None, weight, settings)
        }),
    }
}

/// [`residual_rms_norm`] of one block.
fn residual_block(
    tape: &Tape,
    residual_td: Var,
    branch_td: Option<Var>,
    weight: &Weight,
    settings: NormSettings,
) -> Result<(Var, Var)> {
    const OPERATOR: &str = "residual_rms_norm";
    let (residual_td, branch_td) = residual_operands(tape, OPERATOR, residual_td, branch_td)?;
    tape.begin(OPERATOR)?;
    let residual_values = residual_td.tensor();
    let scale = &named(OPERATOR, weight.values(residual_values.dtype()))?;
    let forward = match &branch_td {
        Some(branch_td) => {
            ops::rms_norm::forward_residual(residual_values, branch_td.tensor(), scale, settings)
        }
        None => ops::rms_norm::forward(residual_values, scale, settings)
            .map(|output_td| (residual_values.clone(), output_td)),
    };
    let (sum_td, ops::rms_norm::Output { output: output_td, rstd: rstd_t }) = named(OPERATOR, forward)?;
    let rule = || NormRule {
        operator: OPERATOR,
        x: sum_td.clone(),
        mean: None,
        rstd: rstd_t,
        weight: weight.clone(),
        bias: None,
        gradient: None,
        measures: settings.measures,
        ranks: TensorRanks::new(tape, false),
    };
    let sources: Vec<_> = std::iter::once(&residual_td).chain(&branch_td).map(Var::source).collect();
    record_residual(tape, &sources, sum_td.clone(), output_td, rule)
}
