//! The source of a run's state before its first step; no other code decides it.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use checkpoint::{Checkpoint, ResumePoint, Target};
use pretrained::PretrainedModel;

use crate::error::{Result, WorkerError};

/// Arrays of weights by name from outside the run.
pub trait Weights: fmt::Debug + Send + Sync {
    /// Returns an identifier of these weights, which must be equal on all ranks.
    fn id(&self) -> &str;

    /// Returns the path, for messages and records.
    fn path(&self) -> &Path;

    /// Reads the arrays of `targets`: this rank's part of every parameter and buffer of its stages, under the
    /// names of the model. Errors: an array that is missing or of another shape, by name; an unreadable file.
    fn load(&self, targets: &mut dyn Iterator<Item = Target>) -> Result<()>;
}

impl Weights for Checkpoint {
    fn id(&self) -> &str {
        Checkpoint::id(self)
    }

    fn path(&self) -> &Path {
        Checkpoint::path(self)
    }

    fn load(&self, targets: &mut dyn Iterator<Item = Target>) -> Result<()> {
        Checkpoint::load::<WorkerError>(self, targets)
    }
}

impl Weights for PretrainedModel {
    fn id(&self) -> &str {
        PretrainedModel::id(self)
    }

    fn path(&self) -> &Path {
        self.folder().path()
    }

    fn load(&self, targets: &mut dyn Iterator<Item = Target>) -> Result<()> {
        Ok(PretrainedModel::load(self, targets)?)
    }
}

/// The source of the state before the first step.
#[derive(Clone, Debug, Default)]
pub enum Start {
    /// Random initial weights from `train.seed`; the optimizer's state is 0.
    #[default]
    Drawn,
    /// Weights and buffers are read; everything else is as at the start of any run.
    Weights(Arc<dyn Weights>),
    /// All state is read from a checkpoint of the same run.
    Resumed(Arc<ResumePoint>),
}

impl Start {
    /// Returns an identifier of the state, which must be equal on all ranks; empty for random weights.
    pub fn id(&self) -> &str {
        match self {
            Start::Drawn => "",
            Start::Weights(weights) => weights.id(),
            Start::Resumed(point) => point.checkpoint.id(),
        }
    }
}
