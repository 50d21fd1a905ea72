//! The choice of tokens.

/// The choice of tokens. Scores are logits after the penalty, divided by the temperature.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// Divisor of the logits; 0: always the likeliest token, the first of several.
    pub temperature: f32,
    /// Tokens whose score is below that of the `top_k`-th likeliest are never drawn; 0: no such limit.
    pub top_k: u32,
    /// Only the likeliest tokens are drawn whose probabilities together are at least this; 1: all.
    pub top_p: f32,
    /// Logits of tokens seen before are divided by this where positive, else multiplied; 1: no penalty.
    pub repetition_penalty: f32,
}

impl Choice {
    /// Returns whether tokens of a vocabulary of this size may not be drawn because others are likelier.
    pub(super) fn has_limits(self, vocabulary: usize) -> bool {
        let is_limited = self.top_k > 0 && (self.top_k as usize) < vocabulary;
        self.temperature > 0.0 && (is_limited || self.top_p < 1.0)
    }
}
