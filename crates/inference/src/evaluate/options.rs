//! Options of an evaluation.

use std::path::PathBuf;

use worker::DeviceChoice;

use crate::location::Location;

/// Options of an evaluation.
#[derive(Clone, Debug, Default)]
pub struct EvaluateOptions {
    /// A run, a checkpoint, a folder of Hugging Face, or one of adapters.
    pub model: PathBuf,
    /// The folder of the model that adapters belong to; `None`: the one that they name.
    pub base: Option<PathBuf>,
    /// The step of a run's checkpoint; `None`: the newest.
    pub step: Option<u64>,
    /// Text files or token shards, or globs of them; empty: what the run held out.
    pub data: Vec<String>,
    /// A file of questions with several endings, instead of data.
    pub choices: Option<PathBuf>,
    /// Tokens in a sequence; `None`: as the model was trained with, or as long as the longest question.
    pub context: Option<usize>,
    /// Settings over the model's configuration, each as `section.key=value`.
    pub sets: Vec<String>,
    /// The device.
    pub device: DeviceChoice,
    /// Number of ranks as threads; must equal the configured number, which is the default.
    pub ranks: Option<usize>,
}

impl EvaluateOptions {
    /// The path of the model.
    pub(crate) fn location(&self) -> Location<'_> {
        Location { path: &self.model, step: self.step, base: self.base.as_deref() }
    }
}
