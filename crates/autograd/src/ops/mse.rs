//! Mean squared error.

use tensor::Tensor;
use tensor::ops;

use super::{autocast, named, only};
use crate::error::Result;
use crate::pass::LossScale;
use crate::rule::{Rule, Saved, ValueGradients};
use crate::sharded::Var;
use crate::tape::Tape;

/// Backward of [`mse`].
#[derive(Debug)]
pub struct MseRule {
    prediction: Tensor,
    target: Tensor,
    scale: f32,
    loss_scale: Option<LossScale>,
}

/// Computes `scale` times the mean over all elements of `(prediction − target)²`.
pub fn mse(tape: &Tape, prediction: Var, target: &Tensor, scale: f32) -> Result<Var> {
    let [prediction] = autocast(tape, "mse", [prediction])?;
    tape.begin("mse")?;
    let loss = named("mse", ops::mse::forward(prediction.tensor(), target, scale))?;
    let loss_scale = tape.pass().loss_scale.clone();
    let rule =
        || MseRule { prediction: prediction.tensor().clone(), target: target.clone(), scale, loss_scale };
    tape.record_one(&[prediction.source()], loss, rule)
}

impl MseRule {
    /// Computes the gradient of the prediction, multiplied by `factor` before rounding.
    fn gradient(&self, factor: Option<&Tensor>) -> Result<Tensor> {
        Ok(ops::mse::backward_scaled(&self.prediction, &self.target, self.scale, factor)?)
    }
}

impl Rule for MseRule {
    fn operator(&self) -> &'static str {
        "mse"
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        vec![Saved::new("prediction", &self.prediction), Saved::new("target", &self.target)]
    }

    fn backward_input(&mut self, outputs: ValueGradients, _wanted: &[bool]) -> Result<ValueGradients> {
        let factor = only(outputs)?;
        if self.loss_scale.is_some() {
            return Ok(vec![Some(self.gradient(Some(&factor))?)]);
        }
        let gradient = self.gradient(None)?;
        ops::scale::by(&gradient, &factor)?;
        Ok(vec![Some(gradient)])
    }

    fn backward_root(&mut self, _wanted: &[bool]) -> Result<Option<ValueGradients>> {
        let factor = self.loss_scale.as_ref().map(|factor| &factor.scale);
        Ok(Some(vec![Some(self.gradient(factor)?)]))
    }
}
