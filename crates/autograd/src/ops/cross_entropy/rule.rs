//! The backward rule of cross-entropy.

use device::{Category, Request};
use tensor::Tensor;
use tensor::ops;
use tensor::ops::linear_cross_entropy::{Settings, Statistics, divided};

use super::super::only;
use super::class_shards::ClassShards;
use crate::error::Result;
use crate::pass::LossScale;
use crate::rule::{Rule, Saved, ValueGradients};

pub(super) const OPERATOR: &str = "cross_entropy";

/// Backward of [`cross_entropy`](super::cross_entropy()).
#[derive(Debug)]
pub struct CrossEntropyRule {
    /// The scores, which their gradients overwrite: one tensor per local shard, or one with all classes.
    pub(super) scores: Vec<Tensor>,
    pub(super) gradient: Gradient,
}

/// The pass that computes the gradients of the scores.
#[derive(Debug)]
pub(super) enum Gradient {
    /// The forward pass, which computes them together with the loss of whole scores.
    InForward {
        loss_scale: Option<LossScale>,
        /// Whether the gradient already includes the loss scale.
        is_scaled: bool,
    },
    /// The backward pass, which computes them from statistics of each row over all shards.
    InBackward { shards: ClassShards, targets: Tensor, statistics: Statistics, settings: Settings },
}

impl Rule for CrossEntropyRule {
    fn operator(&self) -> &'static str {
        OPERATOR
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        match &self.gradient {
            Gradient::InForward { .. } => self.scores.iter().map(|t| Saved::new("gradient", t)).collect(),
            Gradient::InBackward { statistics, .. } => {
                let scores = self.scores.iter().map(|scores| Saved::new("scores", scores));
                let weights = statistics.weights.iter().map(|weights| Saved::new("weights", weights));
                scores.chain([Saved::new("statistics", &statistics.rows)]).chain(weights).collect()
            }
        }
    }

    fn backward_input(&mut self, outputs: ValueGradients, _wanted: &[bool]) -> Result<ValueGradients> {
        let factor = only(outputs)?;
        let scores = std::mem::take(&mut self.scores).into_iter().enumerate();
        match &self.gradient {
            Gradient::InForward { loss_scale, is_scaled } => {
                let factor = match loss_scale {
                    // The gradient and the factor both include the loss scale.
                    Some(scale) if *is_scaled => scale.removed_from(factor)?,
                    _ => factor,
                };
                let scaled = |(_, gradient): (usize, Tensor)| -> Result<Option<Tensor>> {
                    ops::scale::by(&gradient, &factor)?;
                    Ok(Some(gradient))
                };
                scores.map(scaled).collect()
            }
            Gradient::InBackward { shards, targets, statistics, settings } => {
                let gradient = |(shard, scores): (usize, Tensor)| -> Result<Option<Tensor>> {
                    let own = scores.into_unique(Request::new(Category::ActivationGradient, OPERATOR))?;
                    divided::gradient(&own, targets, statistics, shards.run(shard), settings, &factor)?;
                    Ok(Some(own))
                };
                scores.map(gradient).collect()
            }
        }
    }

    fn backward_root(&mut self, _wanted: &[bool]) -> Result<Option<ValueGradients>> {
        let Gradient::InForward { loss_scale, is_scaled } = &self.gradient else { return Ok(None) };
        let gradients = std::mem::take(&mut self.scores);
        if let (Some(scale), false) = (loss_scale, is_scaled) {
            gradients.iter().try_for_each(|gradient| ops::scale::by(gradient, &scale.scale))?;
        }
        Ok(Some(gradients.into_iter().map(Some).collect()))
    }
}
