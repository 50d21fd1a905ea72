//! The source of a run's state before its first step; no other code decides it.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use checkpoint::{Checkpoint, ResumePoint, Target};
use device::DType;
use pretrained::PretrainedModel;

use crate::error::{Result, WorkerError};

/// Arrays of weights by name from outside the run.
pub trait Weights: fmt::Debug + Send + Sync {
    /// Returns an identifier of these weights, which must be equal on all ranks.
    fn id(&self) -> &str;

    /// Returns the path, for messages and records.
    fn path(&self) -> &Path;

    /// Returns whether there is an array of this name.
    fn has(&self, name: &str) -> bool;

    /// Returns whether the array of this name is a record of codes instead of values.
    fn has_record(&self, _name: &str) -> bool {
        false
    }

    /// Reads the arrays of `targets`: this rank's part of every parameter and buffer of its stages, under the
    /// names of the model.
    ///
    /// # Errors
    /// An array that is missing or of another shape, by name; an unreadable file.
    fn load(&self, targets: &mut dyn Iterator<Item = Target>) -> Result<()>;
}

impl Weights for Checkpoint {
    fn id(&self) -> &str {
        Checkpoint::id(self)
    }

    fn path(&self) -> &Path {
        Checkpoint::path(self)
    }

    fn has(&self, name: &str) -> bool {
        Checkpoint::has(self, name)
    }

    fn has_record(&self, name: &str) -> bool {
        self.layout(name).is_ok_and(|(dtype, _)| dtype == DType::U8)
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

    fn has(&self, name: &str) -> bool {
        PretrainedModel::has(self, name)
    }

    fn load(&self, targets: &mut dyn Iterator<Item = Target>) -> Result<()> {
        Ok(PretrainedModel::load(self, targets)?)
    }
}

/// Weights in two parts: adapters or other trained parameters, and the model that they belong to.
#[derive(Clone, Debug)]
pub struct Layered {
    first: Arc<dyn Weights>,
    base: Option<Arc<dyn Weights>>,
    id: String,
}

impl Layered {
    /// Takes arrays from `first`, and those that it lacks from `base`.
    pub fn new(first: Arc<dyn Weights>, base: Option<Arc<dyn Weights>>) -> Self {
        let ids = std::iter::once(&first).chain(&base).map(|weights| weights.id());
        let id = ids.collect::<Vec<_>>().join("+");
        Layered { first, base, id }
    }

    /// The weights that have the array `name`.
    fn of(&self, name: &str) -> &dyn Weights {
        let base = self.base.as_ref().filter(|base| !self.first.has(name) && base.has(name));
        &**base.unwrap_or(&self.first)
    }
}

impl Weights for Layered {
    fn id(&self) -> &str {
        &self.id
    }

    fn path(&self) -> &Path {
        self.first.path()
    }

    fn has(&self, name: &str) -> bool {
        self.first.has(name) || self.base.as_ref().is_some_and(|base| base.has(name))
    }

    fn has_record(&self, name: &str) -> bool {
        self.of(name).has_record(name)
    }

    fn load(&self, targets: &mut dyn Iterator<Item = Target>) -> Result<()> {
        for target in targets {
            self.of(&target.name).load(&mut std::iter::once(target))?;
        }
        Ok(())
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
