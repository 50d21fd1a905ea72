//! The state from which a run resumes.

use crate::reader::Checkpoint;

/// A checkpoint from which a run resumes, with its losses.
#[derive(Clone, Debug)]
pub struct ResumePoint {
    /// The checkpoint.
    pub checkpoint: Checkpoint,
    /// The loss of every step before it.
    pub losses: Vec<f32>,
    /// The damage of newer checkpoints that were passed over, in a sentence each.
    pub damaged_newer: Vec<String>,
}
