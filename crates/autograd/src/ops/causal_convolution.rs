//! Causal depthwise convolution of sequences.

use tensor::Tensor;
use tensor::ops::causal_convolution::{self, Operands};

use super::{autocast, named, only, values_of};
use crate::error::{AutogradError, Result};
use crate::pass::CachedPass;
use crate::rule::{Rule, Saved, ValueGradients};
use crate::sharded::{Var, map};
use crate::sink::{GradientSink, discarded, ready, target};
use crate::tape::Tape;
use crate::weight::Weight;

/// Weights of a causal convolution, and its options.
#[derive(Clone, Debug)]
pub struct CausalConvolution {
    /// Weights `[channels, 1, width]`, the oldest input's first.
    pub weight: Weight,
    /// Bias `[channels]`, if any.
    pub bias: Option<Weight>,
    /// Whether SiLU is applied to the result.
    pub silu: bool,
}

/// Backward of [`causal_convolution()`].
#[derive(Debug)]
pub struct CausalConvolutionRule {
    x: Tensor,
    layer: CausalConvolution,
    documents: Option<Tensor>,
    /// Gradient of the output, kept between the input and weight halves of backward.
    gradient: Option<Tensor>,
}

/// Convolves each channel of `x_blc [batch, time, channels]` along its sequence. Tokens do not read other
/// documents of the pass.
pub fn causal_convolution(tape: &Tape, x_blc: Var, layer: &CausalConvolution) -> Result<Var> {
    const OPERATOR: &str = "causal_convolution";
    map(tape, [x_blc], |_, [x_blc]| {
        let [x_blc] = autocast(tape, OPERATOR, [x_blc])?;
        tape.begin(OPERATOR)?;
        if let Some(pass) = &tape.pass().cache {
            return Ok(tape.constant(layer.forward_cached(tape, pass, x_blc.tensor())?));
        }
        let documents = tape.pass().documents.clone();
        let forward = layer.with_operands(x_blc.tensor(), documents.as_ref(), |operands| {
            causal_convolution::forward(x_blc.tensor(), operands)
        });
        tape.record_one(&[x_blc.source()], named(OPERATOR, forward)?, || CausalConvolutionRule {
            x: x_blc.tensor().clone(),
            layer: layer.clone(),
            documents,
            gradient: None,
        })
    })
}

impl CausalConvolution {
    /// Computes a whole sequence that fills a slot of the pass's state, or the next token of every sequence.
    fn forward_cached(&self, tape: &Tape, pass: &CachedPass, x_blc: &Tensor) -> Result<Tensor> {
        let state = pass.next_state().ok_or(AutogradError::NoCache)?;
        let computed = match (pass.slot(), &tape.pass().documents) {
            (Some(slot), _) => self.with_operands(x_blc, None, |operands| {
                causal_convolution::store(x_blc, state, slot)?;
                causal_convolution::forward(x_blc, operands)
            }),
            (None, Some(documents)) => self.with_operands(x_blc, Some(documents), |operands| {
                causal_convolution::step(x_blc, operands, state)
            }),
            (None, None) => return Err(AutogradError::NoCache),
        };
        named("causal_convolution", computed)
    }

    /// Calls `compute` with the values of the weights.
    fn with_operands<T>(
        &self,
        x_blc: &Tensor,
        documents: Option<&Tensor>,
        compute: impl FnOnce(Operands<'_>) -> tensor::Result<T>,
    ) -> tensor::Result<T> {
        let weight = self.weight.values(x_blc.dtype())?;
        let bias = values_of(self.bias.as_ref(), x_blc.dtype())?;
        compute(Operands { weight: &weight, bias: bias.as_ref(), silu: self.silu, documents })
    }
}

impl Rule for CausalConvolutionRule {
    fn operator(&self) -> &'static str {
        "causal_convolution"
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        vec![Saved::new("x", &self.x)]
    }

    fn has_weights(&self) -> bool {
        self.layer.weight.is_trained() || self.layer.bias.as_ref().is_some_and(Weight::is_trained)
    }

    fn backward_input(&mut self, outputs: ValueGradients, wanted: &[bool]) -> Result<ValueGradients> {
        let dy_blc = only(outputs)?;
        let backward = |operands: Operands<'_>| {
            wanted[0].then(|| causal_convolution::backward_input(&dy_blc, &self.x, operands)).transpose()
        };
        let dx_blc = self.layer.with_operands(&self.x, self.documents.as_ref(), backward)?;
        self.gradient = self.has_weights().then_some(dy_blc);
        Ok(vec![dx_blc])
    }

    fn backward_weight(self: Box<Self>, sink: &mut dyn GradientSink) -> Result<()> {
        let CausalConvolutionRule { x, layer, documents, gradient } = *self;
        let Some(dy_blc) = gradient else { return Ok(()) };
        let bias_target = match &layer.bias {
            Some(bias) => target(sink, bias)?,
            None => None,
        };
        let weight_target = match (target(sink, &layer.weight)?, &bias_target) {
            (Some(target), _) => target,
            (None, Some(bias)) => discarded(&layer.weight, bias)?,
            (None, None) => return Ok(()),
        };
        layer.with_operands(&x, documents.as_ref(), |operands| {
            let bias = bias_target.as_ref();
            causal_convolution::backward_weight(&dy_blc, &x, operands, &weight_target, bias)
        })?;
        drop((dy_blc, x));
        layer.bias.as_ref().map_or(Ok(()), |bias| ready(sink, bias))?;
        ready(sink, &layer.weight)
    }
}
