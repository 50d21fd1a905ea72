//! From configuration to model, data source and optimizer.

use std::sync::{Arc, OnceLock};

use data::{Corpus, Source, SyntheticKind, SyntheticOptions, SyntheticSource, TextOptions, TextSource};
use device::{DType, Device};
use nn::{Examples, Model, Recompute, Stage};
use optim::{Schedule, UpdateRule};

use crate::error::{Result, WorkerError};
use config::{self, DataKind, OptimKind, RunConfig};

/// The data of a run.
#[derive(Clone)]
pub struct Dataset {
    /// Source of micro-batches by index.
    pub source: Arc<dyn Source>,
    /// The text; none for synthetic data.
    pub text: Option<Arc<TextSource>>,
    corpus_sha256: Arc<OnceLock<String>>,
}

impl Dataset {
    /// Returns the SHA-256 of the corpus in hexadecimal; `None` for synthetic data. The first call reads the
    /// whole corpus.
    pub fn corpus_sha256(&self) -> Option<&str> {
        let text = self.text.as_ref()?;
        Some(self.corpus_sha256.get_or_init(|| text.corpus().fingerprint()))
    }
}

/// Opens the data of a configuration. Errors: what is wrong with the data, by name.
pub fn dataset(config: &RunConfig) -> Result<Dataset> {
    let (data, train) = (&config.data, &config.train);
    match data.kind {
        DataKind::Text => {
            let options = TextOptions {
                context: config.model.examples().units(),
                micro_batch: train.micro_batch_size,
                seed: train.seed,
                validation_fraction: data.validation_fraction,
                validation_micro_batches: train.validation_micro_batches,
            };
            let corpus = Corpus::open(&data.base, &data.paths);
            let text = corpus.and_then(|corpus| TextSource::new(corpus, data.tokenizer, &options));
            let origin = || config.origins.of("data.paths");
            let text = Arc::new(text.map_err(|source| WorkerError::Data { origin: origin(), source })?);
            Ok(Dataset {
                source: Arc::clone(&text) as Arc<dyn Source>,
                text: Some(text),
                corpus_sha256: Arc::default(),
            })
        }
        DataKind::Synthetic => {
            let kind = match config.model.examples() {
                Examples::Tokens { vocabulary, context } => SyntheticKind::Tokens { vocabulary, context },
                Examples::Numbers { inputs, outputs } => SyntheticKind::Regression { inputs, outputs },
            };
            let options = SyntheticOptions {
                kind,
                micro_batch: train.micro_batch_size,
                seed: train.seed,
                validation_micro_batches: train.validation_micro_batches,
            };
            Ok(Dataset {
                source: Arc::new(SyntheticSource::new(options)?),
                text: None,
                corpus_sha256: Arc::default(),
            })
        }
    }
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
