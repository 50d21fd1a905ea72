//! From configuration to model, data source and optimizer.

use std::sync::{Arc, OnceLock};

use data::{Corpus, Slice, Source, Split, SyntheticKind, SyntheticOptions, SyntheticSource};
use data::{TokenOptions, TokenSource};
use device::{DType, Device};
use nn::{Examples, Model, Recompute, Stage};
use optim::{Schedule, UpdateRule};

use crate::error::{Result, WorkerError};
use config::{self, Data, DataKind, OptimKind, RunConfig};

/// The data of a run.
#[derive(Clone)]
pub struct Dataset {
    /// Source of micro-batches by index.
    pub source: Arc<dyn Source>,
    /// The tokens; none for synthetic data.
    pub tokens: Option<Arc<TokenSource>>,
    corpus_sha256: Arc<OnceLock<String>>,
}

impl Dataset {
    fn of_tokens(source: TokenSource) -> Self {
        let source = Arc::new(source);
        let tokens = Some(Arc::clone(&source));
        Dataset { source, tokens, corpus_sha256: Arc::default() }
    }

    fn synthetic(source: SyntheticSource) -> Self {
        Dataset { source: Arc::new(source), tokens: None, corpus_sha256: Arc::default() }
    }

    /// Returns the SHA-256 of the corpus in hexadecimal; `None` for synthetic data. The first call reads the
    /// whole corpus. Errors: a file that was changed or cannot be read.
    pub fn corpus_sha256(&self) -> std::result::Result<Option<&str>, data::Error> {
        let Some(tokens) = &self.tokens else { return Ok(None) };
        if let Some(known) = self.corpus_sha256.get() {
            return Ok(Some(known));
        }
        let read = tokens.fingerprint()?;
        Ok(Some(self.corpus_sha256.get_or_init(|| read)))
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
    Ok(Dataset::of_tokens(source))
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
