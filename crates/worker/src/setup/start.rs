//! The initial state of a run, before its first step.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use checkpoint::{Checkpoint, ResumePoint, Target};
use device::DType;
use optim::{AVERAGE_PREFIX, StateArray};
use pretrained::PretrainedModel;

use crate::error::{Result, WorkerError};

/// A source of named weight arrays from outside the run.
pub trait Weights: fmt::Debug + Send + Sync {
    /// Returns an identifier of these weights; it must be equal on all ranks.
    fn id(&self) -> &str;

    /// Returns the path, for messages and records.
    fn path(&self) -> &Path;

    /// Returns whether there is an array of this name.
    fn has(&self, name: &str) -> bool;

    /// Returns whether the array of this name is stored quantized, as bytes instead of values.
    fn has_record(&self, _name: &str) -> bool {
        false
    }

    /// Reads the arrays of `targets`, which are this rank's parts of its stages' parameters and buffers.
    ///
    /// # Errors
    /// An array, named in the error, is missing or has another shape, or a file is unreadable.
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

/// Weights in two layers: adapters or other trained parameters, on top of the base model's.
#[derive(Clone, Debug)]
pub struct Layered {
    first: Arc<dyn Weights>,
    base: Option<Arc<dyn Weights>>,
    id: String,
}

impl Layered {
    /// Reads each array from `first`, or from `base` if `first` lacks it.
    pub fn new(first: Arc<dyn Weights>, base: Option<Arc<dyn Weights>>) -> Self {
        let ids = std::iter::once(&first).chain(&base).map(|weights| weights.id());
        let id = ids.collect::<Vec<_>>().join("+");
        Layered { first, base, id }
    }

    /// Returns the layer that has the array `name`.
    fn find_layer(&self, name: &str) -> &dyn Weights {
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
        self.find_layer(name).has_record(name)
    }

    fn load(&self, targets: &mut dyn Iterator<Item = Target>) -> Result<()> {
        for target in targets {
            self.find_layer(&target.name).load(&mut std::iter::once(target))?;
        }
        Ok(())
    }
}

/// Averages of a checkpoint's weights. Arrays without an average are as in the checkpoint.
#[derive(Clone, Debug)]
pub struct Averaged {
    weights: Arc<dyn Weights>,
    id: String,
}

impl Averaged {
    /// Reads the averages in `weights`.
    pub fn new(weights: Arc<dyn Weights>) -> Self {
        let id = format!("{}+average", weights.id());
        Averaged { weights, id }
    }

    /// Returns whether a checkpoint has averages of weights.
    pub fn is_in(checkpoint: &Checkpoint) -> bool {
        checkpoint.names().any(|name| name.starts_with(AVERAGE_PREFIX))
    }

    /// Returns the name of a parameter's average, if there is one.
    fn average(&self, parameter: &str) -> Option<String> {
        Some(StateArray::average(parameter).name).filter(|name| self.weights.has(name))
    }
}

impl Weights for Averaged {
    fn id(&self) -> &str {
        &self.id
    }

    fn path(&self) -> &Path {
        self.weights.path()
    }

    fn has(&self, name: &str) -> bool {
        self.weights.has(name)
    }

    fn has_record(&self, name: &str) -> bool {
        self.average(name).is_none() && self.weights.has_record(name)
    }

    fn load(&self, targets: &mut dyn Iterator<Item = Target>) -> Result<()> {
        self.weights.load(&mut targets.map(|target| match self.average(&target.name) {
            Some(name) => Target { name, ..target },
            None => target,
        }))
    }
}

/// The source of a run's initial state.
#[derive(Clone, Debug, Default)]
pub enum Start {
    /// Random weights from `train.seed`; the optimizer's state is zero.
    #[default]
    Drawn,
    /// Weights and buffers are read; everything else starts as with random weights.
    Weights(Arc<dyn Weights>),
    /// The entire state is read from a checkpoint of the same run.
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
