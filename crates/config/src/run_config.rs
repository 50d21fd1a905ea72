//! The validated configuration of a run, and its text.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

use data::Tokenizer;
use keys::{Key, Only, Origins, Section, Value};
use nn::{Fp8Layers, HuggingFaceModel, Tuning};
use parallel::data::Assignment;
use parallel::pipeline::{ScheduleKind, Shape};
use sha2::{Digest, Sha256};
use system::numbers::hexadecimal;

use crate::choices::{DataKind, LossMean, PreferenceLoss};
use crate::mixture;
use crate::model::ModelConfig;
use crate::sections::{
    Checkpoint, Data, LoraSection, Memory, Optim, Parallel, Precision, Preference, Scaler, Telemetry, Train,
};
use crate::table::table;

/// A validated configuration with every default filled in.
///
/// It is created by [`RunConfig::load`] and similar functions.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct RunConfig {
    /// The model to train.
    pub model: ModelConfig,
    /// The training data.
    pub data: Data,
    /// The tokenizer named by `data.tokenizer`.
    pub tokenizer: Tokenizer,
    /// Length of the run, batch sizes and other settings of training.
    pub train: Train,
    /// Settings of low-rank adapters.
    pub lora: LoraSection,
    /// The selection of trained parameters, derived from `train.freeze` and `[lora]`.
    pub tuning: Arc<Tuning>,
    /// The linear layers that multiply in FP8, derived from `[precision]`; `None` if none do.
    pub fp8: Option<Arc<Fp8Layers>>,
    /// The optimizer and its learning rate.
    pub optim: Optim,
    /// How the work is distributed over ranks.
    pub parallel: Parallel,
    /// The types of weights, activations and gradients.
    pub precision: Precision,
    /// The loss function for preference pairs.
    pub preference: Preference,
    /// The dynamic loss scale for f16.
    pub scaler: Scaler,
    /// The caching allocator, recomputation and offloading.
    pub memory: Memory,
    /// Progress reports and metrics.
    pub telemetry: Telemetry,
    /// Intervals and number of checkpoints.
    pub checkpoint: Checkpoint,
    /// Where each value was written, for messages.
    pub origins: Origins,
}

impl RunConfig {
    /// Returns the number of ranks in the grid.
    #[must_use]
    pub fn world_size(&self) -> usize {
        self.parallel.grid().world_size()
    }

    /// Returns which replica runs each micro-batch of a training step: contiguous lanes per replica, or lanes
    /// in turn if gradients are sharded.
    #[must_use]
    pub fn training_assignment(&self) -> Assignment {
        self.assignment(1)
    }

    /// Returns which rank adds up the gradients of each lane. If context ranks share state, a lane has one
    /// part for each of them, and parts are added like lanes.
    #[must_use]
    pub fn reduction_assignment(&self) -> Assignment {
        self.assignment(self.parallel.gradient_parts())
    }

    /// Assigns lanes of `parts` parts each; every part has its own rank.
    fn assignment(&self, parts: usize) -> Assignment {
        let Parallel { lanes, data, .. } = self.parallel;
        let group = self.parallel.owners() / self.parallel.gradient_parts() * parts;
        let assignment = match self.parallel.shards_gradients() {
            true => Assignment::in_groups(lanes * parts, data * parts, group).padded(),
            false => Assignment::contiguous(lanes * parts, data * parts),
        };
        assignment.with_lanes_of(self.train.micro_batches() / lanes)
    }

    /// Returns which replica runs each micro-batch of a validation: replicas in turn.
    #[must_use]
    pub fn validation_assignment(&self) -> Assignment {
        self.round_robin(self.validation_micro_batches() as usize)
    }

    /// Returns whether there is validation data: separate files, or a held-out fraction.
    #[must_use]
    pub fn validates(&self) -> bool {
        self.data.validation_fraction > 0.0 || !self.data.validation_paths.is_empty()
    }

    /// Returns the number of micro-batches per validation; 0 without validation data.
    #[must_use]
    pub fn validation_micro_batches(&self) -> u64 {
        if self.validates() { self.train.validation_micro_batches } else { 0 }
    }

    /// Returns whether weights are fetched for each block, because ranks shard them or host memory holds
    /// them.
    #[must_use]
    pub fn gathers_weights(&self) -> bool {
        self.parallel.shards_weights() || self.memory.offload_weights
    }

    /// Returns the number of ranks that shard the weights between uses; 1 if each holds all.
    #[must_use]
    pub fn weight_owners(&self) -> usize {
        if self.parallel.shards_weights() { self.parallel.owners() } else { 1 }
    }

    fn round_robin(&self, count: usize) -> Assignment {
        let assignment = Assignment::round_robin(count, self.parallel.data);
        if self.parallel.shards_weights() { assignment.padded() } else { assignment }
    }

    /// Returns whether checkpoints omit frozen weights, because the folder of `model.from` has them.
    #[must_use]
    pub fn leaves_out_frozen(&self) -> bool {
        !self.tuning.trains_all() && self.model.weights().is_some()
    }

    /// Returns which replica computes the reference scores of each of `micro_batches` micro-batches of pairs:
    /// replicas in turn.
    #[must_use]
    pub fn pairs_assignment(&self, micro_batches: usize) -> Assignment {
        self.round_robin(micro_batches)
    }

    /// Returns the rows of a micro-batch: sequences or images, two for each preference pair.
    #[must_use]
    pub fn micro_batch_rows(&self) -> usize {
        self.train.micro_batch_size * self.rows_of_sample()
    }

    /// Returns the rows per sample: 2 for a preference pair, otherwise 1.
    #[must_use]
    pub fn rows_of_sample(&self) -> usize {
        if self.data.kind == DataKind::Preference { 2 } else { 1 }
    }

    /// Returns whether some tokens are not targets: prompts, padding, or ignored tokens.
    #[must_use]
    pub fn ignores_targets(&self) -> bool {
        match self.data.kind {
            DataKind::Chat => true,
            DataKind::Preference => self.preference.loss == PreferenceLoss::Orpo,
            DataKind::Text | DataKind::Tokens => self.data.pack_documents || self.data.ignore.is_some(),
            DataKind::Images | DataKind::Synthetic => false,
        }
    }

    /// Returns whether losses are means over the targets of all micro-batches, so that their number must be
    /// known before the first one runs. Otherwise all micro-batches have equal weight.
    #[must_use]
    pub fn means_over_targets(&self) -> bool {
        self.ignores_targets() && self.train.loss_mean == LossMean::Targets
    }

    /// Returns whether passes must know which rows are padding, because padding is excluded from the loss and
    /// from expert loads.
    #[must_use]
    pub fn masks_padding(&self) -> bool {
        let pads =
            matches!(self.data.kind, DataKind::Chat | DataKind::Preference) || self.data.pack_documents;
        let Train { balance_loss, router_z_loss, correction_rate, loss_mean, .. } = self.train;
        let balances = balance_loss > 0.0 || router_z_loss > 0.0 || correction_rate > 0.0;
        pads && balances && loss_mean == LossMean::Targets
    }

    /// Returns the model in Hugging Face's format, with the modules that predict later tokens; `None` if
    /// Hugging Face has no such model.
    #[must_use]
    pub fn hugging_face(&self) -> Option<HuggingFaceModel> {
        self.model.hugging_face_with(self.train.prediction_modules())
    }

    /// Returns the number of layers of the model, which are divided over pipeline stages.
    #[must_use]
    pub fn layers(&self) -> usize {
        self.model.layers()
    }

    /// Returns the number of pipeline stages; 1 on a single rank.
    #[must_use]
    pub fn stages(&self) -> usize {
        let Shape { ranks, chunks, .. } = self.pipeline_shape();
        ranks * chunks
    }

    /// Returns the pipeline shape of the first replica, which runs the most micro-batches.
    #[must_use]
    pub fn pipeline_shape(&self) -> Shape {
        self.pipeline_shape_of(0)
    }

    /// Returns the pipeline shape of a replica: ranks, stages per rank, and micro-batches.
    #[must_use]
    pub fn pipeline_shape_of(&self, replica: usize) -> Shape {
        let Parallel { pipeline, chunks, .. } = self.parallel;
        let chunks = if pipeline == 1 { 1 } else { chunks };
        Shape { ranks: pipeline, chunks, micro_batches: self.training_assignment().count(replica) }
    }

    /// Returns the token that begins documents: `data.separator`, or else the tokenizer's; `None` if there is
    /// none.
    #[must_use]
    pub fn separator(&self) -> Option<u32> {
        self.data.separator.or_else(|| self.tokenizer.separator())
    }

    /// Returns the token that begins a text: `data.separator`, or else that of `tokenizer`; `None` if there
    /// is none. The byte tokenizer has none, because any byte may be part of a text.
    #[must_use]
    pub fn text_start(&self, tokenizer: &Tokenizer) -> Option<u32> {
        let own = || tokenizer.separator().filter(|_| *tokenizer != Tokenizer::Bytes);
        self.data.separator.or_else(own)
    }

    /// Returns the tokens that end a text: the end token of `tokenizer`, then [`RunConfig::text_start`],
    /// which precedes the next document.
    #[must_use]
    pub fn text_ends(&self, tokenizer: &Tokenizer) -> Vec<u32> {
        let start = self.text_start(tokenizer);
        let end = tokenizer.end().filter(|end| *tokenizer != Tokenizer::Bytes && Some(*end) != start);
        end.into_iter().chain(start).collect()
    }

    /// Returns the configuration with the steps that `train.epochs` implies for an epoch of `sequences`
    /// sequences or images, and with the defaults that depend on the steps.
    #[must_use]
    pub fn with_epoch_of(mut self, sequences: u64) -> Self {
        let Some(steps) = self.train.steps_of_epochs(sequences) else { return self };
        self.train.steps = steps;
        if !self.origins.is_set(Optim::step_size) {
            self.optim.step_size = Optim::default_step_size(steps);
        }
        if !self.origins.is_set(Optim::decay_steps) {
            self.optim.decay_steps = Optim::default_decay_steps(steps);
        }
        if self.optim.warmup_ratio > 0.0 {
            self.optim.warmup_steps = Optim::ratio_of(self.optim.warmup_ratio, steps);
        }
        self.with_schedule_lengths()
    }

    /// Returns the number of sequence positions per step over all ranks; for models without tokens, samples.
    #[must_use]
    pub fn positions_per_step(&self) -> u64 {
        (self.train.global_batch_size * self.rows_of_sample() * self.model.examples().units()) as u64
    }

    /// Returns the configuration with the steps of warm-up and decay that `optim.warmup` and `optim.decay`
    /// imply.
    #[must_use]
    pub(crate) fn with_schedule_lengths(mut self) -> Self {
        let steps = self.train.steps.saturating_sub(self.optim.schedule_start);
        let tokens = self.positions_per_step();
        let optim = &mut self.optim;
        if let Some(warmup) = optim.warmup.steps(steps, tokens) {
            optim.warmup_steps = warmup;
        }
        if let Some(decay) = optim.decay.steps(steps, tokens) {
            optim.decay_steps = decay.max(1);
        }
        self
    }

    /// Returns the pipeline schedule. On one rank it is 1F1B, because each micro-batch ends before the next
    /// begins.
    #[must_use]
    pub fn schedule_kind(&self) -> ScheduleKind {
        match self.parallel.pipeline {
            1 => ScheduleKind::OneForwardOneBackward,
            _ => self.parallel.schedule,
        }
    }

    /// Formats the resolved configuration as TOML, with every key that applies. It parses to an equal value
    /// in any directory. Numbers keep the configured spelling, such as `3e-4`.
    #[must_use]
    pub fn to_toml(&self) -> String {
        self.as_written(self.settings())
    }

    /// Formats settings as TOML, with numbers in the configured spelling.
    fn as_written(&self, settings: Vec<(Key, Value)>) -> String {
        render(settings, |key, value| self.origins.as_written(key.path, value))
    }

    /// Formats the section `name` as in [`RunConfig::to_toml`]: its heading and its keys.
    #[must_use]
    pub fn section_toml(&self, name: &str) -> String {
        let settings = self.settings().into_iter().filter(|(key, _)| key.section == name);
        render(settings, |_, value| value.to_string())
    }

    /// Returns a hexadecimal SHA-256 of the resolved configuration without this machine's paths (`data.base`,
    /// `parallel.profile`), so that ranks on different machines can compare it. The data has its own hash,
    /// and the partition is compared by its stages.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        let settings = self.portable_settings().into_iter().filter(|(key, _)| !key.is_local);
        let text = render(settings, |_, value| value.to_string());
        hexadecimal(&Sha256::digest(text))
    }

    /// Formats the resolved configuration as TOML. `tokenizer` and `chat_template`, if set, replace the paths
    /// of these files by files beside the configuration.
    #[must_use]
    pub fn to_toml_beside(&self, tokenizer: Option<&str>, chat_template: Option<&str>) -> String {
        let files = [(Data::tokenizer, tokenizer), (Data::chat_template, chat_template)];
        let mut settings = self.settings();
        for (key, value) in &mut settings {
            let beside = files.iter().find_map(|(path, file)| file.filter(|_| key.path == *path));
            if let Some(file) = beside {
                *value = file.to_owned().into();
            }
        }
        self.as_written(settings)
    }

    /// Returns [`RunConfig::settings`] with the tokenizer's identity instead of its path, and only the
    /// weights of a mixture.
    pub(crate) fn portable_settings(&self) -> Vec<(Key, Value)> {
        let mut settings = self.settings();
        for (key, value) in &mut settings {
            if key.path == Data::tokenizer {
                *value = self.tokenizer.identity().into();
            } else if key.path == Data::mixture {
                *value = mixture::weights(&self.data.mixture);
            }
        }
        settings
    }

    /// Returns every key that applies with its value, in file order.
    pub(crate) fn settings(&self) -> Vec<(Key, Value)> {
        let mut values: BTreeMap<&str, Value> = BTreeMap::new();
        values.extend(pairs(self.model.section()));
        values.extend(self.model.pairs().map(|(key, value)| (key.path, value)));
        values.extend(pairs(&self.data));
        values.extend(pairs(&self.preference));
        values.extend(pairs(&self.train));
        values.extend(pairs(&self.lora));
        values.extend(pairs(&self.optim));
        values.extend(pairs(&self.parallel));
        values.extend(pairs(&self.precision));
        values.extend(pairs(&self.scaler));
        values.extend(pairs(&self.memory));
        values.extend(pairs(&self.telemetry));
        values.extend(pairs(&self.checkpoint));
        let applies = |only: Only| {
            let tables = only.or_in.and_then(|tables| values.get(tables));
            values.get(only.key).is_some_and(|value| only.allows(value))
                || tables.is_some_and(|tables| only.allows_in(tables))
        };
        let table = table(self.model.families());
        let keys = table.keys().iter().filter(|key| key.only.is_none_or(applies));
        keys.filter_map(|key| Some((key.clone(), values.get(key.path)?.clone()))).collect()
    }
}

fn pairs<S: Section>(section: &S) -> impl Iterator<Item = (&'static str, Value)> {
    S::keys().into_iter().map(|key| key.path).zip(section.values())
}

/// Formats settings as TOML, each value by `show`.
fn render(settings: impl IntoIterator<Item = (Key, Value)>, show: impl Fn(&Key, &Value) -> String) -> String {
    let mut text = String::new();
    let mut section = "";
    for (key, value) in settings {
        if key.section != section {
            section = key.section;
            let gap = if text.is_empty() { "" } else { "\n" };
            // Writing to a string does not fail.
            let _ = writeln!(text, "{gap}[{section}]");
        }
        let _ = writeln!(text, "{} = {}", key.name, show(&key, &value));
    }
    text
}
