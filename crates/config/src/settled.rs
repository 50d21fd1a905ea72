//! Defaults that the device and the data of a run decide.

use std::fmt;

use device::{DType, Description, Kind};
use keys::{Key, Value};
use nn::Examples;
use system::numbers::grouped;

use crate::choices::DataKind;
use crate::folder::{self, CONTEXT};
use crate::run_config::RunConfig;
use crate::sections::{Parallel, Precision};

/// The oldest GPUs with matmuls in bf16.
const BF16_FROM: (u32, u32) = (8, 0);
/// Sequences sized by the data are a multiple of so many tokens, which makes matmuls fast on every GPU.
const CONTEXT_MULTIPLE: usize = 64;
/// The most tokens of a sequence sized by the data, the default of LLaMA-Factory.
const MOST_CONTEXT: usize = 2048;

/// Lengths of the samples of a run, in the tokens of a sequence that holds one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleLengths {
    /// Number of samples.
    pub samples: usize,
    /// Tokens of the longest.
    pub longest: usize,
}

/// The choice of `model.context` by the data.
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
    /// Returns the configuration for ranks on such a device: where `precision.compute` is not written, a GPU
    /// that has it computes in bf16. A configuration that other keys hold to f32 stays as it is.
    #[must_use]
    pub fn on_device(self, device: &Description) -> Self {
        let has_bf16 = device.kind == Kind::Cuda && device.compute_capability >= BF16_FROM;
        if !has_bf16 || self.is_written(Precision::compute) {
            return self;
        }
        self.with_default(&[format!("{} = \"{}\"", Precision::compute, DType::Bf16)]).unwrap_or(self)
    }

    /// Returns whether the samples decide `model.context`: it is not written, and they are conversations or
    /// pairs of answers.
    #[must_use]
    pub fn is_sized_by_data(&self) -> bool {
        let has_samples = matches!(self.data.kind, DataKind::Chat | DataKind::Preference);
        has_samples && !self.is_written(CONTEXT) && matches!(self.model.examples(), Examples::Tokens { .. })
    }

    /// Returns the configuration with sequences that hold the longest sample, rounded up to a multiple of 64
    /// tokens, at most 2,048 and at most those that the folder's model is made for; and the choice in words.
    /// The table of positions keeps its rows.
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

    /// The most tokens of a text that the model continues: those that its folder was made for, if these are
    /// more than the sequences of the run.
    #[must_use]
    pub fn longest_text(&self) -> usize {
        let folder = self.model.folder();
        let of_folder = folder.and_then(|folder| folder::context_of(folder, self.model.families()));
        let context = self.model.examples().units();
        of_folder.map_or(context, |tokens| context.max(tokens as usize))
    }

    /// Returns the configuration of a run that goes on where one with the configuration `earlier` has ended:
    /// defaults that device, data and grid decide stay as they were.
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

    /// Returns whether the file or the command line has `key`.
    fn is_written(&self, key: &str) -> bool {
        self.origins.is_set(key) && !self.is_of_folder(key)
    }

    /// Returns the configuration with other defaults of keys that are not written; `None` if they contradict
    /// others.
    fn with_default(&self, settings: &[String]) -> Option<Self> {
        let changed = self.with(settings).ok()?;
        Some(Self { origins: self.origins.clone(), ..changed })
    }

    /// Returns whether the value of `key` comes from the model's folder, of which no line of the
    /// configuration tells.
    pub(crate) fn is_of_folder(&self, key: &str) -> bool {
        let origin = self.origins.find(key);
        self.origins.is_set(key) && matches!(origin, keys::Origin::File { line: None, .. })
    }
}
