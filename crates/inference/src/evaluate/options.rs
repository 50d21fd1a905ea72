//! Options of an evaluation.

use std::path::PathBuf;

use worker::DeviceChoice;

use crate::location::Location;

/// Options of an evaluation.
#[derive(Clone, Debug, Default)]
pub struct EvaluateOptions {
    /// A run, a checkpoint, a Hugging Face folder, or a folder of adapters.
    pub model: PathBuf,
    /// Folder of the adapters' base model; `None` for the folder named by the adapters.
    pub base: Option<PathBuf>,
    /// Step of a run's checkpoint; `None` for the newest.
    pub step: Option<u64>,
    /// Whether to use the average of the weights (`train.ema`) instead of the weights.
    pub average: bool,
    /// Text files or token shards, or globs of them; empty for the data that the run held out.
    pub data: Vec<String>,
    /// File of multiple-choice questions, instead of data.
    pub choices: Option<PathBuf>,
    /// Number of tokens in a sequence; `None` as in training, or for the longest question.
    pub context: Option<usize>,
    /// Overrides of the model's configuration, each as `section.key=value`.
    pub sets: Vec<String>,
    /// Device to compute on.
    pub device: DeviceChoice,
    /// Number of ranks as threads; must equal the configured number, which is the default.
    pub ranks: Option<usize>,
}

impl EvaluateOptions {
    /// Returns the location of the model.
    pub(crate) fn location(&self) -> Location<'_> {
        let base = self.base.as_deref();
        Location { path: &self.model, step: self.step, base, average: self.average }
    }
}
