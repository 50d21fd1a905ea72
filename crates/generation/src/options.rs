//! Options of generation.

use tensor::ops::choose::Choice;

/// Options of a [`Generator`](crate::Generator).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GeneratorOptions {
    /// Sequences at once on each replica of the model, at most
    /// [`Generator::most_slots`](crate::Generator::most_slots).
    pub slots: usize,
    /// Tokens of a sequence, at most the model's context.
    pub capacity: usize,
    /// Tokens of a sequence when it is first computed, or computed anew, at most.
    pub longest: usize,
    /// The choice of tokens.
    pub choice: Choice,
}
