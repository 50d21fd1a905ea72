//! Layer normalisation, alone or fused with a residual addition.

use tensor::ops;
use tensor::ops::layer_norm::Settings as NormSettings;

use super::named;
use super::norm_rule::{NormRule, record_residual};
use crate::error::Result;
use crate::tape::{Tape, Var};
use crate::weight::Weight;

/// `x` is `[.., width]`; `weight` and `bias`, which may be absent, are `[width]`. Errors: as
/// [`ops::layer_norm::forward`].
pub fn layer_norm(
    tape: &Tape,
    x: Var,
    weight: &Weight,
    bias: Option<&Weight>,
    settings: impl Into<NormSettings>,
) -> Result<Var> {
    let settings = settings.into();
    tape.begin("layer_norm")?;
    let forward = ops::layer_norm::forward(x.tensor(), weight.tensor(), bias.map(Weight::tensor), settings);
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
    };
    tape.record_one(&[x.source()], output, rule)
}

/// Returns (sum, normalised): `sum = residual + branch`, or the residual itself without a branch, and its
/// normalisation. Later readers of the sum take it from this pair: the backward kernel then adds both
/// gradients with one rounding, whether the sum had a branch or was cut by a pipeline. Errors: as
/// [`ops::layer_norm::forward_residual`].
pub fn residual_layer_norm(
    tape: &Tape,
    residual: Var,
    branch: Option<Var>,
    weight: &Weight,
    bias: Option<&Weight>,
    settings: impl Into<NormSettings>,
) -> Result<(Var, Var)> {
    let settings = settings.into();
    const OPERATOR: &str = "residual_layer_norm";
    tape.begin(OPERATOR)?;
    let (values, scale, shift) = (residual.tensor(), weight.tensor(), bias.map(Weight::tensor));
    let forward = match &branch {
        Some(branch) => ops::layer_norm::forward_residual(values, branch.tensor(), scale, shift, settings),
        None => ops::layer_norm::forward(values, scale, shift, settings).map(|made| (values.clone(), made)),
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
    };
    let sources: Vec<_> = std::iter::once(&residual).chain(&branch).map(Var::source).collect();
    record_residual(tape, &sources, sum.clone(), output, rule)
}
