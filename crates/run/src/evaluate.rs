//! The loss of a trained model on all tokens of some data.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use collective::{Communicator, threads};
use config::{DataKind, MixtureSource, RunConfig};
use data::{IGNORED, MicroBatch};
use device::DType;
use nn::Examples;
use serde::Serialize;
use worker::{DeviceChoice, Evaluator, Placement, Setup, Weights, WorkerError, build};

use crate::error::{Result, RunError};
use crate::placement::Placed;
use crate::rank::prepare_kernels;
use crate::startup::Startup;
use crate::trained::Trained;

/// Sequences in a micro-batch, at most.
const MOST_SEQUENCES: u64 = 8;

/// Options of an evaluation.
#[derive(Clone, Debug, Default)]
pub struct EvaluateOptions {
    /// A run, a checkpoint or a folder of Hugging Face.
    pub model: PathBuf,
    /// The step of a run's checkpoint; `None`: the newest.
    pub step: Option<u64>,
    /// Text files or token shards, or globs of them; empty: what the run held out.
    pub data: Vec<String>,
    /// Tokens in a sequence; `None`: as the model was trained with.
    pub context: Option<usize>,
    /// Settings over the model's configuration, each as `section.key=value`.
    pub sets: Vec<String>,
    /// The device.
    pub device: DeviceChoice,
    /// Number of ranks as threads; must equal the configured number, which is the default.
    pub ranks: Option<usize>,
}

/// The result of an evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Evaluation {
    /// Tokens that were predicted.
    pub tokens: u64,
    /// Mean loss of a token, in nats.
    pub loss: f64,
    /// The loss as a power of e.
    pub perplexity: f64,
}

impl fmt::Display for Evaluation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Evaluation { tokens, loss, perplexity } = self;
        write!(f, "{tokens} tokens, loss {loss:.6} per token, perplexity {perplexity:.4}")
    }
}

/// Evaluates a model on sequences that follow each other without overlap; tokens at the end that fill none
/// are left out. `None` on ranks of a job other than 0.
///
/// # Errors
/// With status 2, before anything is allocated: no model there, data that is wrong, settings that do not go
/// together. A rank's failure ends all.
pub fn evaluate(mut startup: Startup, options: &EvaluateOptions) -> Result<Option<Evaluation>> {
    let first = startup.rank() == 0;
    let prepared = prepare(&startup, options);
    let (setup, weights) = startup.agree(prepared)?;
    let same = startup.check_same(&setup, "");
    startup.agree(same)?;
    let counts = startup.agree(if first { counted_targets(&setup) } else { Ok(Vec::new()) })?;
    let (config, timeout) = (Arc::clone(&setup.config), setup.config.parallel.timeout_seconds);
    let body = move |communicator: Communicator| -> Result<Vec<f32>> {
        prepare_kernels(&setup)?;
        Ok(Evaluator::new(&setup, communicator, &*weights)?.losses()?)
    };
    let losses = if startup.is_in_job() {
        startup.run_in_job(timeout, body)?.unwrap_or_default()
    } else if config.world_size() == 1 {
        body(Communicator::solo())?
    } else {
        let waits = threads::Options { timeout: Duration::from_secs(timeout), ..threads::Options::default() };
        let ran = threads::run(config.world_size(), waits, body);
        let failed = |error: threads::RunError<RunError>| RunError::Rank {
            rank: error.rank,
            reason: error.cause.to_string(),
        };
        ran.map_err(failed)?.into_iter().next().unwrap_or_default()
    };
    let tokens = counts.iter().sum();
    let loss = mean(&losses, &counts);
    Ok(first.then(|| Evaluation { tokens, loss, perplexity: loss.exp() }))
}

/// The mean of the losses of micro-batches, of which each counts by its targets.
fn mean(losses: &[f32], counts: &[u64]) -> f64 {
    let most = counts.iter().copied().max().unwrap_or(0).max(1) as f64;
    let weights: Vec<f64> = counts.iter().map(|count| *count as f64 / most).collect();
    let sum: f64 = losses.iter().zip(&weights).map(|(loss, weight)| f64::from(*loss) * weight).sum();
    sum / weights.iter().sum::<f64>()
}

/// Finds model and data, and cuts the data into micro-batches.
fn prepare(startup: &Startup, options: &EvaluateOptions) -> Result<(Setup, Arc<dyn Weights>)> {
    let Trained { config, weights } = Trained::find(&options.model, options.step, &options.sets)?;
    let mut config = cut(config, options)?;
    startup.check_ranks(config.parallel.data, config.parallel.pipeline, options.ranks)?;
    let Placed { placement, reason } = Placed::find(options.device, &mut config, startup, options.ranks)?;
    tracing::info!("computing on {reason}");
    if matches!(placement, Placement::Cpu) && config.precision.compute == DType::Bf16 {
        // The host computes in f32, whatever the run computed in.
        config = config.with(&["precision.compute=f32".to_owned(), "precision.gradients=f32".to_owned()])?;
    }
    Ok((plan::prepare(config, placement)?, weights))
}

/// Returns the configuration with all of the data as validation micro-batches of equal size.
fn cut(config: RunConfig, options: &EvaluateOptions) -> Result<RunConfig> {
    let Examples::Tokens { .. } = config.model.examples() else {
        return Err(RunError::Refused(format!("{}: it takes no tokens", options.model.display())));
    };
    let mut sets = data_settings(&config, options)?;
    if let Some(context) = options.context {
        sets.extend(config.model.with_context(context));
    }
    let micro_batches = config.train.micro_batches();
    let sized = |sequences: u64| {
        let global = sequences * micro_batches as u64;
        [format!("train.micro_batch_size={sequences}"), format!("train.global_batch_size={global}")]
    };
    sets.extend(sized(1));
    let single = config.with(&sets)?;
    let dataset = build::dataset(&single)?;
    let of_each = dataset.tokens.as_ref().map_or(Vec::new(), |tokens| tokens.validation_sequences());
    let sequences: u64 = of_each.iter().sum();
    let size = (1..=MOST_SEQUENCES).rev().find(|size| sequences.is_multiple_of(*size)).unwrap_or(1);
    let mut sets = sized(size).to_vec();
    sets.push(format!("train.validation_micro_batches={}", sequences / size));
    if !single.data.mixture.is_empty() {
        sets.push(mixture_by_size(&single.data.mixture, &of_each));
    }
    Ok(single.with(&sets)?)
}

/// The setting of a mixture whose validation has every sequence of its sources once.
fn mixture_by_size(sources: &[MixtureSource], sequences: &[u64]) -> String {
    let source = |(source, sequences): (&MixtureSource, &u64)| {
        // A JSON list of strings is a TOML list.
        let list = |paths: &[String]| serde_json::Value::from(paths);
        let (paths, held_out) = (list(&source.paths), list(&source.validation_paths));
        format!("{{paths = {paths}, validation_paths = {held_out}, weight = {sequences}}}")
    };
    let sources: Vec<String> = sources.iter().zip(sequences).map(source).collect();
    format!("data.mixture=[{}]", sources.join(", "))
}

/// Targets that count in each validation micro-batch. Errors: data that cannot be read.
fn counted_targets(setup: &Setup) -> Result<Vec<u64>> {
    let (config, source) = (&setup.config, &setup.dataset.source);
    let count = config.train.validation_micro_batches as usize;
    if config.data.ignore.is_none() && !config.data.pack_documents {
        return Ok(vec![(config.train.micro_batch_size * config.model.examples().units()) as u64; count]);
    }
    let mut batch = MicroBatch::default();
    let targets = (0..count as u64).map(|index| {
        source.validation(index, &mut batch)?;
        Ok(batch.targets.tokens()?.iter().filter(|target| **target != IGNORED).count() as u64)
    });
    targets.collect::<std::result::Result<_, data::Error>>().map_err(|error| WorkerError::from(error).into())
}

/// The settings of the data that is evaluated. Errors: none given for a model without data of its own; texts
/// and token shards together.
fn data_settings(config: &RunConfig, options: &EvaluateOptions) -> Result<Vec<String>> {
    // Packed documents follow each other in validation whatever the order of training.
    let order = if config.data.pack_documents { "shuffled" } else { "sequential" };
    let in_order = format!("data.order={order}");
    if options.data.is_empty() {
        if config.data.kind == DataKind::Synthetic {
            let text = format!("{}: it has no data of its own: --data FILE", options.model.display());
            return Err(RunError::Refused(text));
        }
        return Ok(vec![in_order]);
    }
    let shards = options.data.iter().filter(|path| path.ends_with(".bin")).count();
    let kind = match shards {
        0 => DataKind::Text,
        all if all == options.data.len() => DataKind::Tokens,
        _ => return Err(RunError::Refused("--data: texts and token shards (.bin) do not mix".to_owned())),
    };
    let base =
        std::env::current_dir().map_err(|source| RunError::File { path: PathBuf::from("."), source })?;
    // A JSON list of strings is a TOML list.
    let paths = serde_json::Value::from(options.data.clone());
    Ok(vec![
        format!("data.kind={}", kind.name()),
        "data.mixture=[]".to_owned(),
        format!("data.paths={paths}"),
        format!("data.validation_paths={paths}"),
        format!("data.base={}", serde_json::Value::from(base.to_string_lossy())),
        in_order,
    ])
}
