//! Layer normalisation, alone or fused with a residual addition.

use tensor::Tensor;
use tensor::ops;

use super::named;
use crate::error::{AutogradError, Result};
use crate::rule::{Rule, Saved};
use crate::sink::{GradientSink, discarded, ready, target};
use crate::tape::{Tape, Var};
use crate::weight::Weight;

/// Backward of [`layer_norm`] and of [`residual_layer_norm`].
#[derive(Debug)]
pub struct LayerNormRule {
    operator: &'static str,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Weight,
    bias: Option<Weight>,
    gradient: Option<Tensor>,
}

/// `x` is `[.., width]`; `weight` and `bias`, which may be absent, are `[width]`. Errors: as
/// [`ops::layer_norm::forward`].
pub fn layer_norm(tape: &Tape, x: Var, weight: &Weight, bias: Option<&Weight>, epsilon: f32) -> Result<Var> {
    let forward = ops::layer_norm::forward(x.tensor(), weight.tensor(), bias.map(Weight::tensor), epsilon);
    let ops::layer_norm::Output { output, mean, rstd } = named("layer_norm", forward)?;
    let rule = || LayerNormRule {
        operator: "layer_norm",
        x: x.tensor().clone(),
        mean,
        rstd,
        weight: weight.clone(),
        bias: bias.cloned(),
        gradient: None,
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
    epsilon: f32,
) -> Result<(Var, Var)> {
    const OPERATOR: &str = "residual_layer_norm";
    let (values, scale, shift) = (residual.tensor(), weight.tensor(), bias.map(Weight::tensor));
    let forward = match &branch {
        Some(branch) => ops::layer_norm::forward_residual(values, branch.tensor(), scale, shift, epsilon),
        None => ops::layer_norm::forward(values, scale, shift, epsilon).map(|made| (values.clone(), made)),
    };
    let (sum, ops::layer_norm::Output { output, mean, rstd }) = named(OPERATOR, forward)?;
    let rule = || LayerNormRule {
        operator: OPERATOR,
        x: sum.clone(),
        mean,
        rstd,
        weight: weight.clone(),
        bias: bias.cloned(),
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
        vec![Saved::new("x", &self.x), Saved::new("mean", &self.mean), Saved::new("rstd", &self.rstd)]
    }

    fn has_weights(&self) -> bool {
        self.weight.is_trained() || self.bias.as_ref().is_some_and(Weight::is_trained)
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
            let (mean, rstd) = (&self.mean, &self.rstd);
            Some(ops::layer_norm::backward_input(&gradient, sum.as_ref(), x, weight, mean, rstd)?)
        } else {
            None
        };
        self.gradient = self.has_weights().then_some(gradient);
        Ok(wanted.iter().map(|wanted| input.clone().filter(|_| *wanted)).collect())
    }

    fn backward_weight(self: Box<Self>, sink: &mut dyn GradientSink) -> Result<()> {
        let Some(gradient) = &self.gradient else { return Ok(()) };
        let weight = target(sink, &self.weight)?;
        let bias = self.bias.as_ref().map_or(Ok(None), |bias| target(sink, bias))?;
        let weight = match (weight, &bias) {
            (Some(weight), _) => weight,
            (None, Some(bias)) => discarded(&self.weight, bias)?,
            (None, None) => return Ok(()),
        };
        ops::layer_norm::backward_weight(gradient, &self.x, &self.mean, &self.rstd, &weight, bias.as_ref())?;
        self.bias.as_ref().map_or(Ok(()), |bias| ready(sink, bias))?;
        ready(sink, &self.weight)
    }
}
