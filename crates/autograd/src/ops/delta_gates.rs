//! Decays and rates of the gated delta rule.

use tensor::ops::delta_gates::{self, Gates, Operands};
use tensor::{DType, Tensor};

use super::{autocast, named};
use crate::error::{AutogradError, Result};
use crate::rule::{Rule, Saved, ValueGradients};
use crate::sharded::Var;
use crate::sink::{GradientSink, discarded, ready, target};
use crate::tape::Tape;
use crate::weight::Weight;

const OPERATOR: &str = "delta_gates";

/// Weights of the gates, and the factor of the rates.
#[derive(Clone, Debug)]
pub struct DeltaGates {
    /// Logarithm of each head's speed of decay.
    pub log_speed: Weight,
    /// Bias of the projection that decays are computed from.
    pub bias: Weight,
    /// Factor of the rates: 1, or 2 if the state's eigenvalues may be negative.
    pub factor: f32,
}

/// Backward of [`delta_gates()`].
#[derive(Debug)]
pub struct DeltaGatesRule {
    /// The projections, until the weights' gradients are computed.
    operands: [Tensor; 2],
    layer: DeltaGates,
    /// Gradient of the decays, kept between the input and weight halves of backward.
    gradient: Option<Tensor>,
}

/// Computes the logarithms of the decays from `a` and the rates from `b`, both in f32. Operands are of one
/// block.
pub fn delta_gates(tape: &Tape, [a, b]: [Var; 2], layer: &DeltaGates) -> Result<[Var; 2]> {
    let [a, b] = autocast(tape, OPERATOR, [a, b])?;
    tape.begin(OPERATOR)?;
    let sources = [a.source(), b.source()];
    let operands = [a, b].map(Var::into_tensor);
    let weights = named(OPERATOR, layer.values(operands[0].dtype()))?;
    let forward = delta_gates::forward(borrow(&operands, &weights), layer.factor);
    let Gates { decay, rate } = named(OPERATOR, forward)?;
    let gates = tape.record(&sources, vec![decay, rate], || DeltaGatesRule {
        operands,
        layer: layer.clone(),
        gradient: None,
    })?;
    <[Var; 2]>::try_from(gates).map_err(|_| AutogradError::NotRecorded)
}

impl DeltaGates {
    fn values(&self, dtype: DType) -> tensor::Result<[Tensor; 2]> {
        Ok([self.log_speed.values(dtype)?, self.bias.values(dtype)?])
    }
}

fn borrow<'a>([a, b]: &'a [Tensor; 2], [log_speed, bias]: &'a [Tensor; 2]) -> Operands<'a> {
    Operands { a, b, log_speed, bias }
}

impl Rule for DeltaGatesRule {
    fn operator(&self) -> &'static str {
        OPERATOR
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        vec![Saved::new("a", &self.operands[0]), Saved::new("b", &self.operands[1])]
    }

    fn has_weights(&self) -> bool {
        self.layer.log_speed.is_trained() || self.layer.bias.is_trained()
    }

    fn backward_input(&mut self, outputs: ValueGradients, _wanted: &[bool]) -> Result<ValueGradients> {
        let [Some(decay), Some(rate)] = &outputs[..] else { return Err(AutogradError::NotRecorded) };
        let weights = self.layer.values(self.operands[0].dtype())?;
        let gradients = Gates { decay, rate };
        let operands = borrow(&self.operands, &weights);
        let inputs = delta_gates::backward_input(gradients, operands, self.layer.factor)?;
        self.gradient = self.has_weights().then(|| decay.clone());
        Ok(vec![Some(inputs.decay), Some(inputs.rate)])
    }

    fn backward_weight(self: Box<Self>, sink: &mut dyn GradientSink) -> Result<()> {
        let DeltaGatesRule { operands, layer, gradient } = *self;
        let Some(ddecay) = gradient else { return Ok(()) };
        let DeltaGates { log_speed, bias, .. } = &layer;
        let (log_speed_target, bias_target) = match (target(sink, log_speed)?, target(sink, bias)?) {
            (Some(log_speed), Some(bias)) => (log_speed, bias),
            (Some(log_speed), None) => (log_speed.clone(), discarded(bias, &log_speed)?),
            (None, Some(of_bias)) => (discarded(log_speed, &of_bias)?, of_bias),
            (None, None) => return Ok(()),
        };
        let weights = layer.values(operands[0].dtype())?;
        let operands = borrow(&operands, &weights);
        delta_gates::backward_weight(&ddecay, operands, &log_speed_target, &bias_target)?;
        ready(sink, bias)?;
        ready(sink, log_speed)
    }
}
