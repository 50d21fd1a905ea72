//! Two-dimensional convolutions of channels-last images.

use tensor::Tensor;
use tensor::ops::{self, convolution::ConvolutionOptions};

use super::{autocast, named, only};
use crate::error::Result;
use crate::rule::{Rule, Saved, ValueGradients};
use crate::sharded::Var;
use crate::sink::{GradientSink, ready, target};
use crate::tape::Tape;
use crate::weight::Weight;

/// Backward of [`convolution`].
#[derive(Debug)]
pub struct ConvolutionRule {
    /// The input, if the weight is trained.
    x: Option<Tensor>,
    /// Height and width of the input.
    size: [usize; 2],
    options: ConvolutionOptions,
    weight: Weight,
    /// Sum of the input's other gradients, to which the input half adds in place.
    sum: Option<Tensor>,
    /// Gradient of the output, kept between the input and weight halves of backward.
    gradient: Option<Tensor>,
}

/// Convolves `x [batch, height, width, in]` with `weight [out, height, width, in / groups]`.
pub fn convolution(tape: &Tape, x: Var, weight: &Weight, options: ConvolutionOptions) -> Result<Var> {
    let [x] = autocast(tape, "convolution", [x])?;
    tape.begin("convolution")?;
    let values = named("convolution", weight.values(x.tensor().dtype()))?;
    let forward = ops::convolution::forward(x.tensor(), &values, &options);
    drop(values);
    let output = named("convolution", forward)?;
    let size = match *x.tensor().shape().dims() {
        [_, height, width, _] => [height, width],
        _ => [0, 0],
    };
    tape.record_one(&[x.source()], output, || ConvolutionRule {
        x: weight.is_trained().then(|| x.tensor().clone()),
        size,
        options,
        weight: weight.clone(),
        sum: None,
        gradient: None,
    })
}

impl Rule for ConvolutionRule {
    fn operator(&self) -> &'static str {
        "convolution"
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        self.x.iter().map(|x| Saved::new("x", x)).collect()
    }

    fn has_weights(&self) -> bool {
        self.weight.is_trained()
    }

    fn take_sum(&mut self, sum: Tensor) -> Option<Tensor> {
        if !ops::convolution::can_add(self.weight.device(), self.weight.shape(), &self.options) {
            return Some(sum);
        }
        self.sum = Some(sum.with_maxima(None));
        None
    }

    fn backward_input(&mut self, outputs: ValueGradients, wanted: &[bool]) -> Result<ValueGradients> {
        let gradient = only(outputs)?;
        let weight = || self.weight.values(gradient.dtype());
        let input = match (wanted[0], self.sum.take()) {
            (true, Some(sum)) => {
                ops::convolution::add_backward_input(&gradient, &weight()?, &sum, &self.options)?;
                Some(sum)
            }
            (true, None) => {
                Some(ops::convolution::backward_input(&gradient, &weight()?, self.size, &self.options)?)
            }
            (false, sum) => sum,
        };
        self.gradient = self.has_weights().then_some(gradient);
        Ok(vec![input])
    }

    fn backward_weight(self: Box<Self>, sink: &mut dyn GradientSink) -> Result<()> {
        let ConvolutionRule { x, options, weight, gradient, .. } = *self;
        let (Some(gradient), Some(x)) = (gradient, x) else { return Ok(()) };
        let Some(target) = target(sink, &weight)? else { return Ok(()) };
        ops::convolution::backward_weight(&gradient, &x, &target, &options)?;
        drop((gradient, x));
        ready(sink, &weight)
    }
}
