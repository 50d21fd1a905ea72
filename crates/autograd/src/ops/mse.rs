//! Mean squared error.

use tensor::Tensor;
use tensor::ops;

use super::{named, only};
use crate::error::Result;
use crate::rule::{Rule, Saved};
use crate::tape::{Tape, Var};

/// Backward of [`mse`].
#[derive(Debug)]
pub struct MseRule {
    prediction: Tensor,
    target: Tensor,
    scale: f32,
}

/// `scale` times the mean over all elements of `(prediction − target)²`.
pub fn mse(tape: &Tape, prediction: Var, target: &Tensor, scale: f32) -> Result<Var> {
    tape.begin("mse")?;
    let loss = named("mse", ops::mse::forward(prediction.tensor(), target, scale))?;
    let rule = || MseRule { prediction: prediction.tensor().clone(), target: target.clone(), scale };
    tape.record_one(&[prediction.source()], loss, rule)
}

impl MseRule {
    fn gradient(&self) -> Result<Tensor> {
        Ok(ops::mse::backward(&self.prediction, &self.target, self.scale)?)
    }
}

impl Rule for MseRule {
    fn operator(&self) -> &'static str {
        "mse"
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        vec![Saved::new("prediction", &self.prediction), Saved::new("target", &self.target)]
    }

    fn backward_input(
        &mut self,
        outputs: Vec<Option<Tensor>>,
        _wanted: &[bool],
    ) -> Result<Vec<Option<Tensor>>> {
        let gradient = self.gradient()?;
        ops::scale::by(&gradient, &only(outputs)?)?;
        Ok(vec![Some(gradient)])
    }

    fn backward_root(&mut self, _wanted: &[bool]) -> Result<Option<Vec<Option<Tensor>>>> {
        Ok(Some(vec![Some(self.gradient()?)]))
    }
}
