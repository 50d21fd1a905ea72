//! Figures of preference pairs, reported beside their loss.

use tensor::ops::preference::VALUES;

/// Number of figures that accompany a preference loss.
pub const FIGURES: usize = VALUES - 1;

/// Means over preference pairs. A reward is β (π − ρ), where π is ln p of an answer under the model and ρ
/// under the reference model. For ORPO it is λ times the mean ln p of the answer's tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PreferenceFigures {
    /// Fraction of pairs whose chosen answer has the higher reward.
    pub accuracy: f64,
    /// Mean reward of chosen answers minus that of rejected answers.
    pub margin: f64,
    /// Mean reward of chosen answers.
    pub chosen: f64,
    /// Mean reward of rejected answers.
    pub rejected: f64,
    /// The part of an ORPO loss that is a mean over targets; 0 for other losses.
    pub learnt: f64,
}

/// Number of figures written to metrics.
const NAMED: usize = 4;

impl PreferenceFigures {
    /// Returns the figures that accompany a loss.
    #[must_use]
    pub fn new(figures: [f32; FIGURES]) -> Self {
        let [accuracy, margin, chosen, rejected, learnt] = figures.map(f64::from);
        Self { accuracy, margin, chosen, rejected, learnt }
    }

    /// Returns the mean of figures over the same number of pairs each, added in order.
    pub(crate) fn mean(all: &[[f32; FIGURES]]) -> Self {
        let mean = |index: usize| {
            all.iter().map(|figures| f64::from(figures[index])).sum::<f64>() / all.len().max(1) as f64
        };
        Self { accuracy: mean(0), margin: mean(1), chosen: mean(2), rejected: mean(3), learnt: mean(4) }
    }

    /// Returns the figures with their names in metrics.
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
