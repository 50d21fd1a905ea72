//! Modes: purposes of a pass through a model.

/// Purpose of a pass through a model; layers query it from the [`Tape`](crate::Tape).
///
/// The mode is set at the start of a pass. It does not determine which calls are recorded: a recomputed
/// segment of a training step first runs in [`Mode::Train`] without being recorded, and then in
/// [`Mode::Recompute`], recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A pass of a training step. The only mode in which layers update buffers.
    Train,
    /// A training pass with discarded results. Allocates as a training step does, on arbitrary values.
    Rehearse,
    /// The second forward pass of a recomputed segment, during backward.
    Recompute,
    /// A forward pass without gradients: validation, sampling.
    Evaluate,
}

impl Mode {
    /// Returns whether layers compute as in training, with batch statistics and dropout. False only for
    /// [`Mode::Evaluate`].
    pub fn is_training(self) -> bool {
        self != Mode::Evaluate
    }

    /// Returns whether layers update buffers. True only for [`Mode::Train`].
    pub fn updates_buffers(self) -> bool {
        self == Mode::Train
    }
}
