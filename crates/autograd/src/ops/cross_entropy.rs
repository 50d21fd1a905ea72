//! Mean cross-entropy of logits against classes, computed together with its gradient.

use tensor::Tensor;
use tensor::ops;

use super::{named, only};
use crate::error::Result;
use crate::rule::{Rule, Saved};
use crate::tape::{Tape, Var};

/// Backward of [`cross_entropy`], which computed the gradient in forward.
#[derive(Debug)]
pub struct CrossEntropyRule {
    gradient: Option<Tensor>,
}

/// `scale` times the mean over rows; `logits` is [.., classes], `targets` has one u32 per row, or for
/// mixtures of classes [`MIXED`](ops::soft_cross_entropy::MIXED). The pass's label smoothing applies. The
/// gradient overwrites the logits if no other tensor shares their storage.
pub fn cross_entropy(tape: &Tape, logits: Var, targets: &Tensor, scale: f32) -> Result<Var> {
    tape.begin("cross_entropy")?;
    let source = logits.source();
    let with_gradient = tape.is_recording() && logits.wants_gradient();
    let (logits, smoothing) = (logits.into_tensor(), tape.pass().label_smoothing);
    let forward = match smoothing > 0.0 || ops::soft_cross_entropy::is_mixed(targets, logits.shape().rows()) {
        true => ops::soft_cross_entropy::forward(logits, targets, smoothing, scale, with_gradient),
        false => ops::cross_entropy::forward(logits, targets, scale, with_gradient),
    };
    let ops::cross_entropy::Output { loss, gradient } = named("cross_entropy", forward)?;
    tape.record_one(&[source], loss, || CrossEntropyRule { gradient })
}

impl Rule for CrossEntropyRule {
    fn operator(&self) -> &'static str {
        "cross_entropy"
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        self.gradient.iter().map(|t| Saved::new("gradient", t)).collect()
    }

    fn backward_input(
        &mut self,
        outputs: Vec<Option<Tensor>>,
        _wanted: &[bool],
    ) -> Result<Vec<Option<Tensor>>> {
        let factor = only(outputs)?;
        if let Some(gradient) = &self.gradient {
            ops::scale::by(gradient, &factor)?;
        }
        Ok(vec![self.gradient.take()])
    }

    fn backward_root(&mut self, _wanted: &[bool]) -> Result<Option<Vec<Option<Tensor>>>> {
        Ok(Some(vec![self.gradient.take()]))
    }
}
