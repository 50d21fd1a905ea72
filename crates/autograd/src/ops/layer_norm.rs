//! Layer normalisation, alone or fused with a residual addition.

use tensor::ops::layer_norm::Settings as NormSettings;
use tensor::{DType, Tensor, ops};

use super::norm_rule::{NormRule, of_pass, record_residual, residual_operands};
use super::{autocast, named, values_of};
use crate::error::Result;
use crate::sharded::{TensorRanks, Var, map};
use crate::tape::Tape;
use crate::weight::Weight;

/// Normalises the rows of `x [.., width]`. `weight` and the optional `bias` are `[width]`.
pub fn layer_norm(
    tape: &Tape,
    x: Var,
    weight: &Weight,
    bias: Option<&Weight>,
    settings: impl Into<NormSettings>,
) -> Result<Var> {
    let settings = of_pass(tape, settings);
    map(tape, [x], |_, [x]| {
        let [x] = autocast(tape, "layer_norm", [x])?;
        tape.begin("layer_norm")?;
        let (scale, shift) = named("layer_norm", values(weight, bias, x.tensor().dtype()))?;
        let forward = ops::layer_norm::forward(x.tensor(), &scale, shift.as_ref(), settings);
        let ops::layer_norm::Output { output, mean, rstd } = named("layer_norm", forward)?;
        let rule = || NormRule {
            operator: "layer_norm",
            x: x.tensor().clone(),
            mean: Some(mean),
            rstd,
            weight: weight.clone(),
            bias: bias.cloned(),
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
pub fn residual_layer_norm(
    tape: &Tape,
    residual: Var,
    branch: Option<Var>,
    weight: &Weight,
    bias: Option<&Weight>,
    settings: impl Into<NormSettings>,
) -> Result<(Var, Var)> {
    let settings = of_pass(tape, settings);
    match branch {
        Some(branch) => map(tape, [residual, branch], |_, [residual, branch]| {
            residual_block(tape, residual, Some(branch), weight, bias, settings)
        }),
        None => map(tape, [residual], |_, [residual]| {
            residual_block(tape, residual, None, weight, bias, settings)
        }),
    }
}

/// [`residual_layer_norm`] of one block.
fn residual_block(
    tape: &Tape,
    residual: Var,
    branch: Option<Var>,
    weight: &Weight,
    bias: Option<&Weight>,
    settings: NormSettings,
) -> Result<(Var, Var)> {
    const OPERATOR: &str = "residual_layer_norm";
    let (residual, branch) = residual_operands(tape, OPERATOR, residual, branch)?;
    tape.begin(OPERATOR)?;
    let x = residual.tensor();
    let (scale, shift) = named(OPERATOR, values(weight, bias, x.dtype()))?;
    let scale = &scale;
    let shift = shift.as_ref();
    let forward = match &branch {
        Some(branch) => ops::layer_norm::forward_residual(x, branch.tensor(), scale, shift, settings),
        None => ops::layer_norm::forward(x, scale, shift, settings).map(|output| (x.clone(), output)),
    };
    let (sum, ops::layer_norm::Output { output, mean, rstd }) = named(OPERATOR, forward)?;
    let rule = || NormRule {
        operator: OPERATOR,
        x: sum.clone(),
        mean: Some(mean),
        rstd,
        weight: weight.clone(),
        bias: bias.cloned(),
        gradient: None,
        measures: settings.measures,
        ranks: TensorRanks::new(tape, false),
    };
    let sources: Vec<_> = std::iter::once(&residual).chain(&branch).map(Var::source).collect();
    record_residual(tape, &sources, sum.clone(), output, rule)
}

/// Returns weight and bias in `dtype`.
fn values(weight: &Weight, bias: Option<&Weight>, dtype: DType) -> tensor::Result<(Tensor, Option<Tensor>)> {
    Ok((weight.values(dtype)?, values_of(bias, dtype)?))
}
