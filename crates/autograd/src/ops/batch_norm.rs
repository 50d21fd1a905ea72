//! Batch normalisation, with an optional residual addition and ReLU in the same kernel.

use tensor::ops::{
    self,
    batch_norm::{Affine, Passes},
};
use tensor::{DType, Tensor};

use super::norm_rule::residual_operands;
use super::{named, only};
use crate::error::Result;
use crate::rule::{Rule, Saved, ValueGradients};
use crate::sharded::Var;
use crate::sink::{GradientSink, discarded, ready, target};
use crate::tape::Tape;
use crate::weight::Weight;

const OPERATOR: &str = "batch_norm";

/// Parameters and options of a batch norm.
#[derive(Clone, Debug)]
pub struct BatchNorm {
    /// Weight, `[channels]`.
    pub weight: Weight,
    /// Bias, `[channels]`.
    pub bias: Weight,
    /// Number added to the variance.
    pub epsilon: f32,
    /// Whether to apply ReLU, after the residual addition.
    pub relu: bool,
}

impl BatchNorm {
    fn affine<'a>(&self, [weight, bias]: [&'a Tensor; 2]) -> Affine<'a> {
        Affine { weight, bias, epsilon: self.epsilon, relu: self.relu }
    }

    /// Returns weight and bias in `dtype`.
    fn values(&self, dtype: DType) -> tensor::Result<[Tensor; 2]> {
        Ok([self.weight.values(dtype)?, self.bias.values(dtype)?])
    }
}

/// The mean and variance with which [`batch_norm`] normalises.
#[derive(Clone, Copy, Debug)]
pub enum Statistics<'a> {
    /// Statistics of the batch. If there is a `record`, `[2, channels]` f32, they are also written there.
    Batch {
        /// Receives mean and unbiased variance.
        record: Option<&'a Tensor>,
    },
    /// Running averages of mean and variance, `[channels]` f32 each. The output then has no gradient.
    Running([&'a Tensor; 2]),
}

/// Backward of [`batch_norm`].
#[derive(Debug)]
pub struct BatchNormRule {
    /// The input; dropped once its gradient is computed.
    x: Option<Tensor>,
    /// The output, if ReLU followed a residual addition. Without a residual, backward computes ReLU's
    /// derivative from x.
    output: Option<Tensor>,
    mean: Tensor,
    rstd: Tensor,
    norm: BatchNorm,
    dtype: DType,
    with_residual: bool,
    /// Gradients of weight and bias, kept between the input and weight halves of backward.
    sums: Option<Tensor>,
}

/// Normalises each channel of `x [.., channels]`, adds `residual` and applies ReLU.
pub fn batch_norm(
    tape: &Tape,
    x: Var,
    residual: Option<Var>,
    norm: &BatchNorm,
    statistics: Statistics<'_>,
) -> Result<Var> {
    let (x, residual) = residual_operands(tape, OPERATOR, x, residual)?;
    tape.begin(OPERATOR)?;
    let values = x.tensor();
    let added = residual.as_ref().map(Var::tensor);
    let parameters = named(OPERATOR, norm.values(values.dtype()))?;
    let affine = norm.affine(parameters.each_ref());
    let record = match statistics {
        Statistics::Batch { record } => record,
        Statistics::Running(averages) => {
            let output = ops::batch_norm::evaluate(values, added, affine, averages);
            return tape.record_one(&[], named(OPERATOR, output)?, || Evaluated { operator: OPERATOR });
        }
    };
    let forward = ops::batch_norm::forward(values, added, affine, record);
    let ops::batch_norm::Output { output, mean, rstd } = named(OPERATOR, forward)?;
    let sources: Vec<_> = std::iter::once(&x).chain(&residual).map(Var::source).collect();
    tape.record_one(&sources, output.clone(), || BatchNormRule {
        x: Some(values.clone()),
        output: (norm.relu && residual.is_some()).then_some(output),
        mean,
        rstd,
        norm: norm.clone(),
        dtype: values.dtype(),
        with_residual: residual.is_some(),
        sums: None,
    })
}

impl Rule for BatchNormRule {
    fn operator(&self) -> &'static str {
        OPERATOR
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        let x = self.x.iter().map(|x| Saved::new("x", x));
        let output = self.output.iter().map(|output| Saved::new("output", output));
        x.chain(output).chain([Saved::new("mean", &self.mean), Saved::new("rstd", &self.rstd)]).collect()
    }

    fn has_weights(&self) -> bool {
        self.norm.weight.is_trained() || self.norm.bias.is_trained()
    }

    fn backward_input(&mut self, outputs: ValueGradients, wanted: &[bool]) -> Result<ValueGradients> {
        let Some(x) = self.x.take() else { return Ok(wanted.iter().map(|_| None).collect()) };
        let output = self.output.take();
        let mean = &self.mean;
        let rstd = &self.rstd;
        let [weight, bias] = &self.norm.values(x.dtype())?;
        let passes = match &output {
            Some(output) => Passes::ByOutput(output),
            None if self.norm.relu => Passes::ByInput { bias },
            None => Passes::Everywhere,
        };
        let saved = ops::batch_norm::Saved { x: &x, passes, mean, rstd };
        let with_residual = self.with_residual && wanted.get(1) == Some(&true);
        let ops::batch_norm::Gradients { input, residual, sums } =
            ops::batch_norm::backward_input(only(outputs)?, saved, weight, with_residual)?;
        self.sums = self.has_weights().then_some(sums);
        let gradients = [Some(input), residual].into_iter().zip(wanted);
        Ok(gradients.map(|(gradient, wanted)| gradient.filter(|_| *wanted)).collect())
    }

    fn backward_weight(self: Box<Self>, sink: &mut dyn GradientSink) -> Result<()> {
        let BatchNormRule { norm: BatchNorm { weight, bias, .. }, sums, dtype, .. } = *self;
        let Some(sums) = sums else { return Ok(()) };
        let (weight_target, bias_target) = match (target(sink, &weight)?, target(sink, &bias)?) {
            (Some(weight), Some(bias)) => (weight, bias),
            (Some(taken), None) => (taken.clone(), discarded(&bias, &taken)?),
            (None, Some(taken)) => (discarded(&weight, &taken)?, taken),
            (None, None) => return Ok(()),
        };
        ops::batch_norm::backward_weight(&sums, dtype, &weight_target, &bias_target)?;
        ready(sink, &bias)?;
        ready(sink, &weight)
    }
}

/// The rule of an output without a gradient.
#[derive(Debug)]
pub(super) struct Evaluated {
    pub(super) operator: &'static str,
}

impl Rule for Evaluated {
    fn operator(&self) -> &'static str {
        self.operator
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        Vec::new()
    }

    fn backward_input(&mut self, _: ValueGradients, wanted: &[bool]) -> Result<ValueGradients> {
        Ok(wanted.iter().map(|_| None).collect())
    }
}
