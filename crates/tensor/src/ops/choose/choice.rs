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
