//! A separate activation. [`super::linear`] fuses it with a matmul.

use tensor::Tensor;
use tensor::ops::{self, Activation};

use super::{autocast, named, only};
use crate::error::Result;
use crate::rule::{Rule, Saved, ValueGradients};
use crate::sharded::{Var, map};
use crate::tape::Tape;

/// Backward of [`activation`].
#[derive(Debug)]
pub struct ActivationRule {
    activation: Activation,
    /// The output for ReLU, the input for other activations.
    saved: Option<Tensor>,
}

/// Applies `activation` to every element.
pub fn activation(tape: &Tape, x: Var, activation: Activation) -> Result<Var> {
    map(tape, [x], |_, [x]| {
        let [x] = autocast(tape, "activation", [x])?;
        tape.begin("activation")?;
        let output = named("activation", ops::activation::forward(x.tensor(), activation))?;
        let saved = match activation {
            Activation::None => None,
            Activation::Relu => Some(output.clone()),
            _ => Some(x.tensor().clone()),
        };
        tape.record_one(&[x.source()], output, || ActivationRule { activation, saved })
    })
}

impl Rule for ActivationRule {
    fn operator(&self) -> &'static str {
        "activation"
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        self.saved.iter().map(|t| Saved::new("saved", t)).collect()
    }

    fn backward_input(&mut self, outputs: ValueGradients, _wanted: &[bool]) -> Result<ValueGradients> {
        let gradient = only(outputs)?;
        let Some(saved) = self.saved.take() else { return Ok(vec![Some(gradient)]) };
        Ok(vec![Some(ops::activation::backward(gradient, &saved, self.activation)?)])
    }
}
