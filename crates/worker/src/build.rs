//! From configuration to model, data source and optimizer.

use std::sync::{Arc, OnceLock};

use checkpoint::CorpusMark;
use data::{Corpus, CorpusIdentity, Slice, Source, Split, SyntheticKind, SyntheticOptions, SyntheticSource};
use data::{TokenOptions, TokenSource};
use device::{DType, Device};
use nn::{Examples, Model, Recompute, Stage};
use optim::{Schedule, UpdateRule};
use telemetry::units::grouped;

use crate::error::{Result, WorkerError};
use config::{self, Data, DataKind, OptimKind, RunConfig};

/// The data of a run.
#[derive(Clone)]
pub struct Dataset {
    /// Source of micro-batches by index.
    pub source: Arc<dyn Source>,
    /// The tokens; none for synthetic data.
    pub tokens: Option<Arc<TokenSource>>,
    mark: Arc<OnceLock<CorpusMark>>,
    /// Whether the mark has a hash of the whole corpus.
    is_hashed: bool,
}

impl Dataset {
    fn of_tokens(source: TokenSource, is_hashed: bool) -> Self {
        let source = Arc::new(source);
        let tokens = Some(Arc::clone(&source));
        Dataset { source, tokens, mark: Arc::default(), is_hashed }
    }

    fn synthetic(source: SyntheticSource) -> Self {
        Dataset { source: Arc::new(source), tokens: None, mark: Arc::default(), is_hashed: false }
    }

    /// Returns what tells the corpus from others; `None` for synthetic data. The first call reads a few
    /// megabytes, with `data.full_hash` the whole corpus. Errors: a file that was changed or cannot be read.
    pub fn mark(&self) -> std::result::Result<Option<&CorpusMark>, data::Error> {
        let Some(tokens) = &self.tokens else { return Ok(None) };
        if let Some(known) = self.mark.get() {
            return Ok(Some(known));
        }
        let CorpusIdentity { tokens: count, modified, samples_sha256 } = tokens.identity()?;
        let sha256 = if self.is_hashed { self.sha256()? } else { None };
        let mark = CorpusMark { tokens: count, modified, samples_sha256, sha256 };
        Ok(Some(self.mark.get_or_init(|| mark)))
    }

    /// Returns the SHA-256 of the whole corpus, which is read; `None` for synthetic data. Errors: a file that
    /// was changed or cannot be read.
    pub fn sha256(&self) -> std::result::Result<Option<String>, data::Error> {
        let Some(tokens) = &self.tokens else { return Ok(None) };
        let count = tokens.split().training.corpus.len();
        tracing::info!("reading all {} tokens of the corpus for their hash", grouped(count));
        tokens.fingerprint().map(Some)
    }
}

/// Opens the data of a configuration. Errors: what is wrong with the data, by name.
pub fn dataset(config: &RunConfig) -> Result<Dataset> {
    let (data, train) = (&config.data, &config.train);
    let kind = match (data.kind, config.model.examples()) {
        (DataKind::Synthetic, Examples::Numbers { inputs, outputs }) => {
            SyntheticKind::Regression { inputs, outputs }
        }
        (DataKind::Synthetic, Examples::Tokens { vocabulary, context }) => {
            SyntheticKind::Tokens { vocabulary, context }
        }
        (DataKind::Text | DataKind::Tokens, _) => return token_dataset(config),
    };
    Ok(Dataset::synthetic(SyntheticSource::new(SyntheticOptions {
        kind,
        micro_batch: train.micro_batch_size,
        seed: train.seed,
        validation_micro_batches: train.validation_micro_batches,
    })?))
}

/// Opens files of text or tokens.
fn token_dataset(config: &RunConfig) -> Result<Dataset> {
    let (data, train) = (&config.data, &config.train);
    let at = |key: &'static str| {
        let origin = config.origins.of(key);
        move |source| WorkerError::Data { origin, key, source }
    };
    let open = |patterns: &[String]| match data.kind {
        DataKind::Tokens => Corpus::open_shards(&data.base, patterns),
        _ => Corpus::open(&data.base, patterns),
    };
    let training = Arc::new(open(&data.paths).map_err(at(Data::paths))?);
    let split = if data.validation_paths.is_empty() {
        Split::at_end(training, data.validation_fraction).map_err(at(Data::validation_fraction))?
    } else {
        let validation = Arc::new(open(&data.validation_paths).map_err(at(Data::validation_paths))?);
        Split { training: Slice::all(training), validation: Slice::all(validation) }
    };
    let vocabulary = match config.model.examples() {
        Examples::Tokens { vocabulary, .. } => vocabulary,
        Examples::Numbers { .. } => config.tokenizer.vocabulary(),
    };
    let options = TokenOptions {
        context: config.model.examples().units(),
        micro_batch: train.micro_batch_size,
        seed: train.seed,
        order: data.order,
        validation_micro_batches: train.validation_micro_batches,
        vocabulary,
    };
    let source = TokenSource::new(split, config.tokenizer.clone(), &options).map_err(at(Data::paths))?;
    Ok(Dataset::of_tokens(source, data.full_hash))
}

/// Builds the layers of `stage` on `device`, computing in `dtype`.
pub fn model(config: &RunConfig, device: &Device, dtype: DType, stage: &Stage) -> Result<Box<dyn Model>> {
    let (seed, recompute) = (config.train.seed, recompute(config));
    Ok(config.model.build(device, stage, seed, dtype, recompute)?)
}

/// Bytes at which a bucket of gradients is full.
pub fn bucket_bytes(config: &RunConfig) -> usize {
    usize::try_from(config.parallel.bucket_bytes).unwrap_or(usize::MAX)
}

/// The layers of a stage that are recomputed; none while `"auto"` is not settled.
fn recompute(config: &RunConfig) -> Recompute {
    let layers = match config.memory.recompute_layers {
        0 => usize::MAX,
        layers => layers,
    };
    match config.memory.recompute {
        config::RecomputePolicy::None | config::RecomputePolicy::Auto => Recompute::NONE,
        config::RecomputePolicy::Block => Recompute::first(layers, usize::MAX),
        config::RecomputePolicy::Segments(count) => Recompute::first(layers, count),
    }
}

/// The rule that updates the parameters.
pub fn update_rule(config: &RunConfig) -> UpdateRule {
    let optim = &config.optim;
    let weight_decay = optim.weight_decay as f32;
    match optim.kind {
        OptimKind::AdamW => UpdateRule::AdamW {
            beta1: optim.beta1 as f32,
            beta2: optim.beta2 as f32,
            epsilon: optim.epsilon as f32,
            weight_decay,
        },
        OptimKind::Sgd => UpdateRule::Sgd { momentum: optim.momentum as f32, weight_decay },
    }
}

/// The learning rate over the run.
pub fn schedule(config: &RunConfig) -> Schedule {
    let optim = &config.optim;
    Schedule {
        peak: optim.learning_rate,
        minimum: optim.min_learning_rate,
        warmup_steps: optim.warmup_steps,
        steps: config.train.steps,
    }
}

/// Tokens in a step, over all ranks; samples for a model that has no tokens.
pub fn tokens_per_step(config: &RunConfig) -> u64 {
    (config.train.global_batch_size * config.model.examples().units()) as u64
}
