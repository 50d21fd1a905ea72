//! Purpose of a pass through a model.

/// Purpose of a pass through a model, which layers ask a [`Tape`](crate::Tape) for.
///
/// It is stated where a pass begins, and says nothing about which calls are recorded: a recomputed segment of
/// a training step first runs in [`Mode::Train`] without being recorded, and then in [`Mode::Recompute`],
/// where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A pass of a training step. The only mode in which layers update buffers.
    Train,
    /// A training pass whose results are discarded: it allocates what a training step allocates, on arbitrary
    /// values.
    Rehearse,
    /// The second forward pass of a recomputed segment, during backward.
    Recompute,
    /// A forward pass without gradients: validation, sampling.
    Evaluate,
}

impl Mode {
    /// Returns whether layers compute as in training (statistics of the batch, dropout). False for
    /// [`Mode::Evaluate`].
    pub fn is_training(self) -> bool {
        self != Mode::Evaluate
    }

    /// Returns whether layers update buffers in this mode. True for [`Mode::Train`] alone.
    pub fn updates_buffers(self) -> bool {
        self == Mode::Train
    }
}
