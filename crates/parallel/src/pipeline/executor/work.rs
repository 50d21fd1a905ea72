//! The kinds of work that an executor does.

use autograd::Mode;
use device::{DType, StreamKind};
use tensor::Shape;

use super::boundary::StageBoundary;

/// The kind of work that an action list does.
#[derive(Clone, Copy, Debug)]
pub(super) enum Work {
    /// A training step; `scale` multiplies the losses.
    Step { scale: f32, mode: Mode },
    /// Forward and backward of one micro-batch, outside of a step.
    Repetition { scale: f32 },
    /// Losses of micro-batches, without backward.
    Validation,
    /// One forward pass of sequences of these extents, without a loss.
    Generation { extents: [usize; 2] },
}

impl Work {
    /// Mode of the tapes.
    pub(super) fn mode(self) -> Mode {
        match self {
            Work::Step { mode, .. } => mode,
            Work::Repetition { .. } => Mode::Rehearse,
            Work::Validation | Work::Generation { .. } => Mode::Evaluate,
        }
    }

    /// Returns the factor of the losses before backward.
    pub(super) fn scale(self) -> f32 {
        match self {
            Work::Step { scale, .. } | Work::Repetition { scale } => scale,
            Work::Validation | Work::Generation { .. } => 1.0,
        }
    }

    /// Returns whether the last stage computes a loss.
    pub(super) fn has_loss(self) -> bool {
        !matches!(self, Work::Generation { .. })
    }

    /// Stream of the transfers between stages.
    pub(super) fn transfer_stream(self) -> StreamKind {
        match self {
            Work::Step { .. } | Work::Repetition { .. } | Work::Validation => StreamKind::Transfer,
            Work::Generation { .. } => StreamKind::Compute,
        }
    }

    /// Dtype of the tensor sent between two stages.
    pub(super) fn transfer_dtype(self, boundary: &StageBoundary) -> DType {
        match self {
            Work::Step { .. } | Work::Repetition { .. } => boundary.dtype,
            Work::Validation | Work::Generation { .. } => boundary.evaluated_dtype,
        }
    }

    /// Shape of the tensor sent between two stages. For a micro-batch of training it is `boundary.shape`.
    pub(super) fn transfer_shape(self, boundary: &StageBoundary) -> Option<Shape> {
        match self {
            Work::Step { .. } | Work::Repetition { .. } | Work::Validation => Some(boundary.shape),
            Work::Generation { extents: [rows, time] } => {
                // Rows of generation are not divided over ranks, as those of a step may be.
                Some([rows, time, boundary.shape.columns()].into())
            }
        }
    }
}
