//! The state that a run continues from.

use crate::reader::Checkpoint;

/// A checkpoint to continue from, with the losses that it holds.
#[derive(Clone, Debug)]
pub struct ResumePoint {
    /// The checkpoint.
    pub checkpoint: Checkpoint,
    /// The loss of every step before it.
    pub losses: Vec<f32>,
}
