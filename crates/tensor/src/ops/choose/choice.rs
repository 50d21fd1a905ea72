//! Sampling settings.

/// Sampling settings. Scores are logits after the repetition penalty, divided by the temperature.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// Divisor of the logits; 0 always chooses the likeliest token, the first of equals.
    pub temperature: f32,
    /// Draw only from the `top_k` likeliest tokens (and ties with the last); 0: no limit.
    pub top_k: u32,
    /// Draw only from the fewest likeliest tokens whose probabilities add up to at least this; 1: all.
    pub top_p: f32,
    /// Penalty of tokens seen before: positive logits are divided by it, others multiplied; 1: no penalty.
    pub repetition_penalty: f32,
}

impl Choice {
    /// Returns whether top-k or top-p can exclude tokens of a vocabulary of this size.
    pub(super) fn has_limits(self, vocabulary: usize) -> bool {
        let is_limited = self.top_k > 0 && (self.top_k as usize) < vocabulary;
        self.temperature > 0.0 && (is_limited || self.top_p < 1.0)
    }
}
