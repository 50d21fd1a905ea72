//! Defaults that depend on the device and the data of a run.

use std::fmt;

use device::{DType, Description, Kind};
use keys::{Key, Value};
use nn::Examples;
use system::numbers::grouped;

use crate::choices::DataKind;
use crate::folder::{self, CONTEXT};
use crate::run_config::RunConfig;
use crate::sections::{Parallel, Precision};

/// Minimum compute capability with bf16 matmuls.
const BF16_FROM: (u32, u32) = (8, 0);
/// Context lengths chosen by the data are a multiple of this, because such matmuls are fast on every GPU.
const CONTEXT_MULTIPLE: usize = 64;
/// Maximum context length chosen by the data, the default of LLaMA-Factory.
const MOST_CONTEXT: usize = 2048;

/// Lengths of a run's samples, in tokens of a sequence that holds one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleLengths {
    /// Number of samples.
    pub samples: usize,
    /// Tokens in the longest sample.
    pub longest: usize,
}

/// The context length chosen by the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizedContext {
    context: usize,
    lengths: SampleLengths,
    noun: &'static str,
}

impl fmt::Display for SizedContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SizedContext { context, lengths: SampleLengths { samples, longest }, noun } = *self;
        let [context, samples, longest] = [context, samples, longest].map(|count| grouped(count as u64));
        write!(f, "model.context = {context}: the longest of {samples} {noun} has {longest} tokens")?;
        match self.lengths.longest > self.context {
            true => write!(f, ", and the end of what is longer than a sequence is cut"),
            false => Ok(()),
        }
    }
}

impl RunConfig {
    /// Returns the configuration with the device's default for `precision.compute`: bf16 on a GPU that
    /// supports it, unless the key or other keys that need f32 are configured.
    #[must_use]
    pub fn on_device(self, device: &Description) -> Self {
        let has_bf16 = device.kind == Kind::Cuda && device.compute_capability >= BF16_FROM;
        if !has_bf16 || self.is_written(Precision::compute) {
            return self;
        }
        self.with_default(&[format!("{} = \"{}\"", Precision::compute, DType::Bf16)]).unwrap_or(self)
    }

    /// Returns whether the samples decide `model.context`: the key is not configured, and the data is
    /// conversations or pairs.
    #[must_use]
    pub fn is_sized_by_data(&self) -> bool {
        let has_samples = matches!(self.data.kind, DataKind::Chat | DataKind::Preference);
        has_samples && !self.is_written(CONTEXT) && matches!(self.model.examples(), Examples::Tokens { .. })
    }

    /// Returns the configuration with a context that holds the longest sample, and a description of the
    /// choice. The context is rounded up to a multiple of 64 tokens, and limited to 2,048 and to the context
    /// of the folder's model. The table of positions keeps its size.
    #[must_use]
    pub fn sized_by(self, lengths: SampleLengths) -> (Self, Option<SizedContext>) {
        let mut context = lengths.longest.next_multiple_of(CONTEXT_MULTIPLE).min(MOST_CONTEXT);
        let settings = match self.model.folder() {
            Some(_) => {
                context = context.min(self.longest_text());
                self.model.with_context(context)
            }
            None => vec![format!("{CONTEXT}={context}")],
        };
        let Some(sized) = self.with_default(&settings) else { return (self, None) };
        let noun = if self.data.kind == DataKind::Preference { "answers" } else { "conversations" };
        (sized, Some(SizedContext { context, lengths, noun }))
    }

    /// Returns the maximum length in tokens of a text to continue: the context of the run, or of its folder's
    /// model if that is longer.
    #[must_use]
    pub fn longest_text(&self) -> usize {
        let folder = self.model.folder();
        let of_folder = folder.and_then(|folder| folder::context_of(folder, self.model.families()));
        let context = self.model.examples().units();
        of_folder.map_or(context, |tokens| context.max(tokens as usize))
    }

    /// Returns the configuration for continuing a run of the configuration `earlier`: defaults that depend on
    /// device, data and grid keep their values.
    #[must_use]
    pub fn continuing(self, earlier: &Self) -> Self {
        let own = self.settings();
        let before = earlier.settings();
        let value = |settings: &[(Key, Value)], path: &str| {
            settings.iter().find(|(key, _)| key.path == path).map(|(_, value)| value.to_string())
        };
        let is_kept = |path: &&str| !self.is_written(path) && value(&own, path) != value(&before, path);
        let kept = [Parallel::lanes, Precision::compute, CONTEXT].into_iter().filter(is_kept);
        let settings: Vec<_> =
            kept.filter_map(|path| Some(format!("{path} = {}", value(&before, path)?))).collect();
        let continued = if settings.is_empty() { None } else { self.with_default(&settings) };
        continued.unwrap_or(self)
    }

    /// Returns whether the file or the command line sets `key`.
    fn is_written(&self, key: &str) -> bool {
        self.origins.is_set(key) && !self.is_of_folder(key)
    }

    /// Returns the configuration with other defaults for keys that are not configured; `None` if they
    /// contradict other keys.
    fn with_default(&self, settings: &[String]) -> Option<Self> {
        let changed = self.with(settings).ok()?;
        Some(Self { origins: self.origins.clone(), ..changed })
    }

    /// Returns whether the value of `key` comes from the model's folder, and not from a line of the
    /// configuration.
    pub(crate) fn is_of_folder(&self, key: &str) -> bool {
        let origin = self.origins.find(key);
        self.origins.is_set(key) && matches!(origin, keys::Origin::File { line: None, .. })
    }
}
