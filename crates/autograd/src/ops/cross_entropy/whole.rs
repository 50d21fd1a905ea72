//! The mean of scores that are here as a whole, computed together with its gradient.

use tensor::Tensor;
use tensor::ops;

use super::super::{autocast, named, only};
use crate::error::Result;
use crate::pass::LossScale;
use crate::rule::{Rule, Saved, ValueGradients};
use crate::sharded::Var;
use crate::tape::Tape;

pub(super) const OPERATOR: &str = "cross_entropy";

/// Backward of [`cross_entropy`](super::cross_entropy()) of whole scores, which computed the gradient in
/// forward.
#[derive(Debug)]
pub struct CrossEntropyRule {
    gradient: Option<Tensor>,
    loss_scale: Option<LossScale>,
    /// Whether the gradient has the loss scale.
    is_scaled: bool,
}

/// The pass's mean over rows, times `scale`. The gradient overwrites the logits if no other tensor shares
/// their storage.
pub(super) fn cross_entropy(tape: &Tape, logits: Var, targets: &Tensor, scale: f32) -> Result<Var> {
    let [logits] = autocast(tape, OPERATOR, [logits])?;
    tape.begin(OPERATOR)?;
    let source = logits.source();
    let with_gradient = tape.is_recording() && logits.wants_gradient();
    let (loss_scale, smoothing) = (tape.pass().loss_scale.clone(), tape.pass().label_smoothing);
    let logits = logits.into_tensor();
    let is_soft = smoothing > 0.0 || ops::soft_cross_entropy::is_mixed(targets, logits.shape().rows());
    let factor = loss_scale.as_ref().map(|factor| &factor.scale);
    let mean = tape.pass().mean(scale);
    let forward = match is_soft {
        true => ops::soft_cross_entropy::forward(logits, targets, smoothing, mean, with_gradient),
        false => ops::cross_entropy::forward_mean(logits, targets, mean, with_gradient, factor),
    };
    let ops::cross_entropy::Output { loss, gradient } = named(OPERATOR, forward)?;
    tape.record_one(&[source], loss, || CrossEntropyRule { gradient, loss_scale, is_scaled: !is_soft })
}

impl Rule for CrossEntropyRule {
    fn operator(&self) -> &'static str {
        OPERATOR
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        self.gradient.iter().map(|t| Saved::new("gradient", t)).collect()
    }

    fn backward_input(&mut self, outputs: ValueGradients, _wanted: &[bool]) -> Result<ValueGradients> {
        let factor = match &self.loss_scale {
            // The gradient has the loss scale already, and so has the factor.
            Some(scale) if self.is_scaled => scale.removed_from(only(outputs)?)?,
            _ => only(outputs)?,
        };
        if let Some(gradient) = &self.gradient {
            ops::scale::by(gradient, &factor)?;
        }
        Ok(vec![self.gradient.take()])
    }

    fn backward_root(&mut self, _wanted: &[bool]) -> Result<Option<ValueGradients>> {
        if let (Some(gradient), Some(scale), false) = (&self.gradient, &self.loss_scale, self.is_scaled) {
            ops::scale::by(gradient, &scale.scale)?;
        }
        Ok(Some(vec![self.gradient.take()]))
    }
}
