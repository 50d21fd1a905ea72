//! The state from which a run resumes.

use crate::reader::Checkpoint;

/// A checkpoint from which a run resumes, with the losses up to it.
#[derive(Clone, Debug)]
pub struct ResumePoint {
    /// The checkpoint.
    pub checkpoint: Checkpoint,
    /// Loss of every step up to the checkpoint.
    pub losses: Vec<f32>,
    /// One sentence for each newer checkpoint that was skipped because it is damaged.
    pub damaged_newer: Vec<String>,
}
