//! Layer normalisation, alone or fused with the addition of a residual.

use tensor::Tensor;
use tensor::ops;

use super::named;
use crate::error::{AutogradError, Result};
use crate::rule::{Rule, Saved};
use crate::sink::GradientSink;
use crate::tape::{Tape, Var};
use crate::weight::Weight;

/// Backward of [`layer_norm`] and of [`residual_layer_norm`].
#[derive(Debug)]
pub struct LayerNormRule {
    operator: &'static str,
    x: Tensor,
    mean: Tensor,
    deviation: Tensor,
    gamma: Weight,
    beta: Weight,
    gradient: Option<Tensor>,
}

/// `x` is [.., width]; `gamma` and `beta` are [width].
pub fn layer_norm(tape: &Tape, x: Var, gamma: &Weight, beta: &Weight, epsilon: f32) -> Result<Var> {
    let forward = ops::layer_norm::forward(x.tensor(), gamma.tensor(), beta.tensor(), epsilon);
    let ops::layer_norm::Output { output, mean, rstd } = named("layer_norm", forward)?;
    let rule = || LayerNormRule {
        operator: "layer_norm",
        x: x.tensor().clone(),
        mean,
        deviation: rstd,
        gamma: gamma.clone(),
        beta: beta.clone(),
        gradient: None,
    };
    tape.record_one(&[x.source()], output, rule)
}

/// `sum = residual + branch`, or the residual itself where there is no branch, and its normalisation: the pair
/// (sum, normalised). What reads the sum further on takes it from here, so that its gradient joins that of the
/// normalised values in one kernel, with one rounding, whether there was a branch or a cut in its place.
pub fn residual_layer_norm(
    tape: &Tape,
    residual: Var,
    branch: Option<Var>,
    gamma: &Weight,
    beta: &Weight,
    epsilon: f32,
) -> Result<(Var, Var)> {
    const OPERATOR: &str = "residual_layer_norm";
    let (values, gain, bias) = (residual.tensor(), gamma.tensor(), beta.tensor());
    let forward = match &branch {
        Some(branch) => ops::layer_norm::forward_residual(values, branch.tensor(), gain, bias, epsilon),
        None => ops::layer_norm::forward(values, gain, bias, epsilon).map(|made| (values.clone(), made)),
    };
    let (sum, ops::layer_norm::Output { output, mean, rstd }) = named(OPERATOR, forward)?;
    let rule = || LayerNormRule {
        operator: OPERATOR,
        x: sum.clone(),
        mean,
        deviation: rstd,
        gamma: gamma.clone(),
        beta: beta.clone(),
        gradient: None,
    };
    let sources: Vec<_> = std::iter::once(&residual).chain(&branch).map(Var::source).collect();
    let mut outputs = tape.record(&sources, vec![sum.clone(), output], rule)?;
    match (outputs.pop(), outputs.pop()) {
        (Some(normalised), Some(sum)) => Ok((sum, normalised)),
        _ => Err(AutogradError::NotRecorded),
    }
}

impl Rule for LayerNormRule {
    fn operator(&self) -> &'static str {
        self.operator
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        vec![
            Saved::new("x", &self.x),
            Saved::new("mean", &self.mean),
            Saved::new("deviation", &self.deviation),
        ]
    }

    fn has_weights(&self) -> bool {
        true
    }

    fn backward_input(
        &mut self,
        mut outputs: Vec<Option<Tensor>>,
        wanted: &[bool],
    ) -> Result<Vec<Option<Tensor>>> {
        let normalised = outputs.pop().flatten();
        let sum = outputs.pop().flatten();
        // Nothing read the normalised value: only the sum's gradient passes through.
        let Some(gradient) = normalised else { return Ok(wanted.iter().map(|_| sum.clone()).collect()) };
        let input = if wanted.contains(&true) {
            let (gamma, x) = (self.gamma.tensor(), &self.x);
            Some(ops::layer_norm::backward_input(
                &gradient,
                sum.as_ref(),
                x,
                gamma,
                &self.mean,
                &self.deviation,
            )?)
        } else {
            None
        };
        self.gradient = Some(gradient);
        Ok(wanted.iter().map(|wanted| input.clone().filter(|_| *wanted)).collect())
    }

    fn backward_weight(self: Box<Self>, sink: &mut dyn GradientSink) -> Result<()> {
        let Some(gradient) = &self.gradient else { return Ok(()) };
        let (gamma, beta) = (sink.target(&self.gamma)?, sink.target(&self.beta)?);
        ops::layer_norm::backward_weight(gradient, &self.x, &self.mean, &self.deviation, &gamma, &beta)?;
        sink.ready(self.beta.use_id())?;
        sink.ready(self.gamma.use_id())
    }
}
