//! Figures of pairs of answers, beside their loss.

use tensor::ops::preference::VALUES;

/// Figures of a loss of pairs.
pub const FIGURES: usize = VALUES - 1;

/// Means over pairs of answers. A reward is β (π − ρ) with ln p of an answer by the model, π, and by the
/// reference model, ρ; of ORPO it is λ times the mean ln p of the answer's tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PreferenceFigures {
    /// The share of pairs whose chosen answer has the higher reward.
    pub accuracy: f64,
    /// The reward of the chosen minus that of the rejected answer.
    pub margin: f64,
    /// The reward of the chosen answer.
    pub chosen: f64,
    /// The reward of the rejected answer.
    pub rejected: f64,
    /// The part of the loss that is a mean over targets, that of ORPO; else 0.
    pub learnt: f64,
}

/// Figures that metrics have.
const NAMED: usize = 4;

impl PreferenceFigures {
    /// The figures that follow a loss.
    #[must_use]
    pub fn new(figures: [f32; FIGURES]) -> Self {
        let [accuracy, margin, chosen, rejected, learnt] = figures.map(f64::from);
        Self { accuracy, margin, chosen, rejected, learnt }
    }

    /// The mean of figures of as many pairs each, in their order.
    pub(crate) fn mean(all: &[[f32; FIGURES]]) -> Self {
        let mean = |index: usize| {
            all.iter().map(|figures| f64::from(figures[index])).sum::<f64>() / all.len().max(1) as f64
        };
        Self { accuracy: mean(0), margin: mean(1), chosen: mean(2), rejected: mean(3), learnt: mean(4) }
    }

    /// The figures by their names in metrics.
    #[must_use]
    pub fn named(&self) -> [(&'static str, f64); NAMED] {
        let Self { accuracy, margin, chosen, rejected, .. } = *self;
        [
            ("reward_accuracy", accuracy),
            ("reward_margin", margin),
            ("chosen_reward", chosen),
            ("rejected_reward", rejected),
        ]
    }
}
