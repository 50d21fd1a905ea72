//! Options of generation.

use tensor::ops::choose::Choice;

/// Options of a [`Generator`](crate::Generator).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GeneratorOptions {
    /// Number of sequences generated at once on each replica, at most
    /// [`Generator::most_slots`](crate::Generator::most_slots).
    pub slots: usize,
    /// Maximum number of tokens per sequence, at most the model's context.
    pub capacity: usize,
    /// Maximum number of tokens computed at once when a sequence starts or is recomputed.
    pub longest: usize,
    /// How tokens are chosen.
    pub choice: Choice,
}
