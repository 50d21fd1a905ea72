//! Pooling of channels-last images.

use tensor::Tensor;
use tensor::ops::{self, pooling::Windows};

use super::{autocast, named, only};
use crate::error::Result;
use crate::rule::{Rule, Saved, ValueGradients};
use crate::sharded::Var;
use crate::tape::Tape;

/// Backward of [`max_pool`].
#[derive(Debug)]
pub struct MaxPoolRule {
    x: Tensor,
    output: Tensor,
    windows: Windows,
}

/// Returns the largest element of each window.
pub fn max_pool(tape: &Tape, x: Var, windows: Windows) -> Result<Var> {
    let [x] = autocast(tape, "max_pool", [x])?;
    tape.begin("max_pool")?;
    let output = named("max_pool", ops::pooling::maximum(x.tensor(), &windows))?;
    let rule = || MaxPoolRule { x: x.tensor().clone(), output: output.clone(), windows };
    tape.record_one(&[x.source()], output.clone(), rule)
}

impl Rule for MaxPoolRule {
    fn operator(&self) -> &'static str {
        "max_pool"
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        vec![Saved::new("x", &self.x), Saved::new("output", &self.output)]
    }

    fn backward_input(&mut self, outputs: ValueGradients, _wanted: &[bool]) -> Result<ValueGradients> {
        let dy = only(outputs)?;
        Ok(vec![Some(ops::pooling::maximum_backward(&dy, &self.x, &self.output, &self.windows)?)])
    }
}

/// Backward of [`average_pool`].
#[derive(Debug)]
pub struct AveragePoolRule {
    /// Height and width of the input.
    size: [usize; 2],
    windows: Windows,
}

/// Returns the mean of each window.
pub fn average_pool(tape: &Tape, x: Var, windows: Windows) -> Result<Var> {
    let [x] = autocast(tape, "average_pool", [x])?;
    tape.begin("average_pool")?;
    let output = named("average_pool", ops::pooling::average(x.tensor(), &windows))?;
    let rule = || AveragePoolRule { size: size(x.tensor()), windows };
    tape.record_one(&[x.source()], output, rule)
}

/// Returns the mean of each image and channel, `[batch, channels]`.
pub fn global_average_pool(tape: &Tape, x: Var) -> Result<Var> {
    let windows = Windows::whole(size(x.tensor()));
    let pooled = average_pool(tape, x, windows)?;
    let shape = pooled.tensor().shape();
    let images = shape.dims().first().copied().unwrap_or(0);
    super::reshape(tape, pooled, [images, shape.columns()])
}

/// Returns height and width of images; 0 for other numbers of dimensions, which the operators reject.
fn size(x: &Tensor) -> [usize; 2] {
    match *x.shape().dims() {
        [_, height, width, _] => [height, width],
        _ => [0, 0],
    }
}

impl Rule for AveragePoolRule {
    fn operator(&self) -> &'static str {
        "average_pool"
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        Vec::new()
    }

    fn backward_input(&mut self, outputs: ValueGradients, _wanted: &[bool]) -> Result<ValueGradients> {
        let dy = only(outputs)?;
        Ok(vec![Some(ops::pooling::average_backward(&dy, self.size, &self.windows)?)])
    }
}
