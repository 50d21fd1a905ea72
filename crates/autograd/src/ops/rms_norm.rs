//! RMS normalisation, alone or fused with a residual addition.

use tensor::Tensor;
use tensor::ops;

use super::named;
use crate::error::{AutogradError, Result};
use crate::rule::{Rule, Saved};
use crate::sink::{GradientSink, ready, target};
use crate::tape::{Tape, Var};
use crate::weight::Weight;

/// Backward of [`rms_norm`] and of [`residual_rms_norm`].
#[derive(Debug)]
pub struct RmsNormRule {
    operator: &'static str,
    x: Tensor,
    rstd: Tensor,
    weight: Weight,
    gradient: Option<Tensor>,
}

/// `x` is `[.., width]`; `weight` is `[width]`. Errors: as [`ops::rms_norm::forward`].
pub fn rms_norm(tape: &Tape, x: Var, weight: &Weight, epsilon: f32) -> Result<Var> {
    const OPERATOR: &str = "rms_norm";
    let forward = ops::rms_norm::forward(x.tensor(), weight.tensor(), epsilon);
    let ops::rms_norm::Output { output, rstd } = named(OPERATOR, forward)?;
    let rule = || RmsNormRule {
        operator: OPERATOR,
        x: x.tensor().clone(),
        rstd,
        weight: weight.clone(),
        gradient: None,
    };
    tape.record_one(&[x.source()], output, rule)
}

/// Returns (sum, normalised): `sum = residual + branch`, or the residual itself without a branch, and its
/// normalisation. Later readers of the sum take it from this pair: the backward kernel then adds both
/// gradients with one rounding, whether the sum had a branch or was cut by a pipeline. Errors: as
/// [`ops::rms_norm::forward_residual`].
pub fn residual_rms_norm(
    tape: &Tape,
    residual: Var,
    branch: Option<Var>,
    weight: &Weight,
    epsilon: f32,
) -> Result<(Var, Var)> {
    const OPERATOR: &str = "residual_rms_norm";
    let (values, scale) = (residual.tensor(), weight.tensor());
    let forward = match &branch {
        Some(branch) => ops::rms_norm::forward_residual(values, branch.tensor(), scale, epsilon),
        None => ops::rms_norm::forward(values, scale, epsilon).map(|made| (values.clone(), made)),
    };
    let (sum, ops::rms_norm::Output { output, rstd }) = named(OPERATOR, forward)?;
    let rule =
        || RmsNormRule { operator: OPERATOR, x: sum.clone(), rstd, weight: weight.clone(), gradient: None };
    let sources: Vec<_> = std::iter::once(&residual).chain(&branch).map(Var::source).collect();
    let mut outputs = tape.record(&sources, vec![sum.clone(), output], rule)?;
    match (outputs.pop(), outputs.pop()) {
        (Some(normalised), Some(sum)) => Ok((sum, normalised)),
        _ => Err(AutogradError::NotRecorded),
    }
}

impl Rule for RmsNormRule {
    fn operator(&self) -> &'static str {
        self.operator
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        vec![Saved::new("x", &self.x), Saved::new("rstd", &self.rstd)]
    }

    fn has_weights(&self) -> bool {
        self.weight.is_trained()
    }

    fn backward_input(
        &mut self,
        mut outputs: Vec<Option<Tensor>>,
        wanted: &[bool],
    ) -> Result<Vec<Option<Tensor>>> {
        let normalised = outputs.pop().flatten();
        let sum = outputs.pop().flatten();
        // Without a gradient of the normalised values, the input's gradient is the sum's.
        let Some(gradient) = normalised else { return Ok(wanted.iter().map(|_| sum.clone()).collect()) };
        let input = if wanted.contains(&true) {
            let (x, weight) = (&self.x, self.weight.tensor());
            Some(ops::rms_norm::backward_input(&gradient, sum.as_ref(), x, weight, &self.rstd)?)
        } else {
            None
        };
        self.gradient = self.has_weights().then_some(gradient);
        Ok(wanted.iter().map(|wanted| input.clone().filter(|_| *wanted)).collect())
    }

    fn backward_weight(self: Box<Self>, sink: &mut dyn GradientSink) -> Result<()> {
        let Some(gradient) = &self.gradient else { return Ok(()) };
        let Some(weight) = target(sink, &self.weight)? else { return Ok(()) };
        ops::rms_norm::backward_weight(gradient, &self.x, &self.rstd, &weight)?;
        ready(sink, &self.weight)
    }
}
