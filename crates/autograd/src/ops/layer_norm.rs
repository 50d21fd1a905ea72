//! Layer normalisation, alone or fused with a residual addition.

use tensor::ops::layer_norm::Settings as NormSettings;
use tensor::{DType, Tensor, ops};

use super::norm_rule::{NormRule, of_pass, record_residual, residual_operands};
use super::{autocast, named, values_of};
use crate::error::Result;
use crate::sharded::{TensorRanks, Var, map};
use crate::tape::Tape;
use crate::weight::Weight;

/// Normalises the rows of `x_td [.., width]`. `weight` and the optional `bias` are `[width]`.
pub fn layer_norm(
    tape: &Tape,
    x_td: Var,
    weight: &Weight,
    bias: Option<&Weight>,
    settings: impl Into<NormSettings>,
) -> Result<Var> {
    let settings = of_pass(tape, settings);
    map(tape, [x_td], |_, [x_td]| {
        let [x_td] = autocast(tape, "layer_norm", [x_td])?;
        tape.begin("layer_norm")?;
        let (scale, shift) = named("layer_norm", values(weight, bias, x_td.tensor().dtype()))?;
        let forward = ops::layer_norm::forward(x_td.tensor(), &scale, shift.as_ref(), settings);
        let ops::layer_norm::Output { output: output_td, mean: mean_t, rstd: rstd_t } =
            named("layer_norm", forward)?;
        let rule = || NormRule {
            operator: "layer_norm",
            x: x_td.tensor().clone(),
            mean: Some(mean_t),
            rstd: rstd_t,
            weight: weight.clone(),
            bias: bias.cloned(),
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
pub fn residual_layer_norm(
    tape: &Tape,
    residual_td: Var,
    branch_td: Option<Var>,
    weight: &Weight,
    bias: Option<&Weight>,
    settings: impl Into<NormSettings>,
) -> Result<(Var, Var)> {
    let settings = of_pass(tape, settings);
    match branch_td {
        Some(branch_td) => map(tape, [residual_td, branch_td], |_, [residual_td, branch_td]| {
            residual_block(tape, residual_td, Some(branch_td), weight, bias, settings)
        }),
        None => map(tape, [residual_td], |_, [residual_td]| {
            residual_block(tape, residual_td, None, weight, bias, settings)
        }),
    }
}

/// [`residual_layer_norm`] of one block.
fn residual_block(
    tape: &Tape,
    residual_td: Var,
    branch_td: Option<Var>,
    weight: &Weight,
    bias: Option<&Weight>,
    settings: NormSettings,
) -> Result<(Var, Var)> {
    const OPERATOR: &str = "residual_layer_norm";
    let (residual_td, branch_td) = residual_operands(tape, OPERATOR, residual_td, branch_td)?;
    tape.begin(OPERATOR)?;
    let x_td = residual_td.tensor();
    let (scale, shift) = named(OPERATOR, values(weight, bias, x_td.dtype()))?;
    let scale = &scale;
    let shift = shift.as_ref();
    let forward = match &branch_td {
        Some(branch_td) => {
            ops::layer_norm::forward_residual(x_td, branch_td.tensor(), scale, shift, settings)
        }
        None => {
            ops::layer_norm::forward(x_td, scale, shift, settings).map(|output_td| (x_td.clone(), output_td))
        }
    };
    let (sum_td, ops::layer_norm::Output { output: output_td, mean: mean_t, rstd: rstd_t }) =
        named(OPERATOR, forward)?;
    let rule = || NormRule {
        operator: OPERATOR,
        x: sum_td.clone(),
        mean: Some(mean_t),
        rstd: rstd_t,
        weight: weight.clone(),
        bias: bias.cloned(),
        gradient: None,
        measures: settings.measures,
        ranks: TensorRanks::new(tape, false),
    };
    let sources: Vec<_> = std::iter::once(&residual_td).chain(&branch_td).map(Var::source).collect();
    record_residual(tape, &sources, sum_td.clone(), output_td, rule)
}

/// Returns weight and bias in `dtype`.
fn values(weight: &Weight, bias: Option<&Weight>, dtype: DType) -> tensor::Result<(Tensor, Option<Tensor>)> {
    Ok((weight.values(dtype)?, values_of(bias, dtype)?))
}
