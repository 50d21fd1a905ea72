//! Prepares an evaluation: finds model and data, and cuts the data into micro-batches.

use std::path::Path;
use std::sync::Arc;

use config::{ConfigError, DataKind, MixtureSource, RunConfig};
use data::{ChoiceSource, Question, Questions, Sequences, Source};
use device::{DType, Kind};
use nn::Examples;
use worker::dataset::{self, DataScope, Dataset};
use worker::{Setup, Weights};

use super::input;
use super::options::EvaluateOptions;
use crate::trained::Trained;
use run::ChosenPlacement;
use run::Startup;
use run::{Result, RunError};

/// Maximum number of sequences in a micro-batch.
const MOST_SEQUENCES: u64 = 8;

/// The prepared evaluation, equal on all ranks.
pub(super) struct Prepared {
    pub(super) setup: Setup,
    pub(super) weights: Arc<dyn Weights>,
    pub(super) questions: Option<Vec<Question>>,
    /// Identifier of the data.
    pub(super) data: String,
}

/// Finds model and data, and cuts the data into micro-batches.
pub(super) fn prepare(startup: &Startup, options: &EvaluateOptions) -> Result<Prepared> {
    let trained = input::trained(options, startup.share())?;
    let vocabulary = match trained.config.model.examples() {
        Examples::Tokens { vocabulary, .. } => vocabulary,
        Examples::Images { .. } => return prepare_images(startup, options, trained),
        Examples::Numbers { .. } => {
            let text = format!("{}: it takes neither tokens nor images", options.model.display());
            return Err(RunError::Refused(text));
        }
    };
    options.context.map_or(Ok(()), |context| check_context(&trained.config, context))?;
    let asked = options.choices.as_deref().map(|path| questions(path, &trained, vocabulary));
    let asked = asked.transpose()?;
    let mut config = match &asked {
        Some(asked) => one_by_one(&trained.config, asked, options.context)?,
        None => cut(&trained, options)?,
    };
    if let Some(advice) = config.context_advice() {
        tracing::warn!("{advice}");
    }
    let mut setup = with_placement(startup, options, &mut config)?;
    let (questions, data) = match asked {
        Some(Questions { questions, sha256 }) => {
            let source = ChoiceSource::new(questions.clone(), setup.config.model.examples().units())?;
            setup.dataset = Dataset::of_source(Arc::new(source));
            (Some(questions), sha256)
        }
        None => {
            whole(&mut setup, vocabulary)?;
            let mark = setup.dataset.mark()?;
            let sha256 = mark.map(|mark| mark.sha256.as_ref().unwrap_or(&mark.samples_sha256));
            (None, sha256.cloned().unwrap_or_default())
        }
    };
    Ok(Prepared { setup, weights: trained.weights, questions, data })
}

/// Chooses the devices of an evaluation.
///
/// # Errors
/// The ranks or the device are not available.
fn with_placement(startup: &Startup, options: &EvaluateOptions, config: &mut RunConfig) -> Result<Setup> {
    startup.check_ranks(config, options.ranks)?;
    let ChosenPlacement { placement, reason } =
        ChosenPlacement::find(options.device, config, startup, options.ranks)?;
    tracing::info!("computing on {reason}");
    if placement.description().kind != Kind::Cuda {
        // The CPU computes in f32, whatever the run used.
        (config.precision.compute, config.precision.gradients) = (DType::F32, DType::F32);
    }
    // A trained model's matmuls use its weights' dtype.
    config.fp8 = None;
    // Modules that predict later tokens take no part.
    config.train.predict_tokens = 1;
    Ok(plan::prepare(config.clone(), placement)?)
}

/// Finds the images to evaluate: those held out by the run, or all images named by `--data`.
fn prepare_images(startup: &Startup, options: &EvaluateOptions, trained: Trained) -> Result<Prepared> {
    if options.choices.is_some() || options.context.is_some() {
        let text = format!("{}: --choices and --context are for models of tokens", options.model.display());
        return Err(RunError::Refused(text));
    }
    let mut sets = Vec::new();
    if options.data.is_empty() {
        input::check_own(&trained, options)?;
    } else {
        let base = input::current_directory()?;
        let whole: Vec<_> = options.data.iter().map(|path| base.join(path)).collect();
        // A JSON list of strings is also a TOML list.
        let paths = serde_json::json!(whole);
        sets.push(format!("data.validation_paths={paths}"));
        if trained.config.data.kind == DataKind::Synthetic {
            sets.extend(["data.kind=images".to_owned(), format!("data.paths={paths}")]);
        }
    }
    let config = trained.config.with(&sets)?;
    let rows = config.train.micro_batch_size as u64;
    let mut config = match dataset::open(&config, DataScope::All)?.source.held_out_sequences() {
        Some(images) => {
            config.with(&[format!("train.validation_micro_batches={}", images.div_ceil(rows))])?
        }
        None => config,
    };
    let setup = with_placement(startup, options, &mut config)?;
    let data = setup.dataset.mark()?.map_or_else(String::new, |mark| mark.samples_sha256.clone());
    Ok(Prepared { setup, weights: trained.weights, questions: None, data })
}

/// Refuses sequence lengths of `--context` that the model does not support.
fn check_context(config: &RunConfig, context: usize) -> Result<()> {
    match config.with(&config.model.with_context(context)) {
        Ok(_) => Ok(()),
        Err(ConfigError::Conflict { reason, .. }) => {
            Err(RunError::Refused(format!("--context {context}: {reason}")))
        }
        Err(other) => Err(other.into()),
    }
}

/// Reads the multiple-choice questions of `--choices`.
///
/// # Errors
/// The file is invalid, or the model cannot answer its questions.
fn questions(path: &Path, trained: &Trained, vocabulary: usize) -> Result<Questions> {
    let tokenizer = match path.extension().is_some_and(|extension| extension == "bin") {
        true => data::Tokenizer::None,
        false => trained.tokenizer()?,
    };
    let read = Questions::read(path, &tokenizer);
    let read = read.map_err(|error| RunError::Refused(format!("--choices: {error}")))?;
    let all = read.questions.iter().flat_map(|question| {
        question.context.iter().chain(question.endings.iter().flat_map(|ending| &ending.tokens))
    });
    let all: Vec<u32> = all.copied().collect();
    let checked = tokenizer.check_tokens(&all, vocabulary);
    checked.map_err(|reason| RunError::Refused(format!("{}: {reason}", path.display())))?;
    Ok(read)
}

/// Returns the configuration for multiple-choice questions: one micro-batch of one sequence for each answer.
fn one_by_one(config: &RunConfig, asked: &Questions, context: Option<usize>) -> Result<RunConfig> {
    let needed = asked.longest().saturating_sub(1).max(1);
    let most = config.model.examples().units();
    let context = context.unwrap_or_else(|| needed.next_multiple_of(whole_pieces(config)).min(most));
    let cut = asked.longer_than(context + 1);
    if cut > 0 {
        tracing::warn!("{cut} of the questions' endings lose the start of their context, which is too long");
    }
    let longest = asked.longest_ending();
    if longest > context {
        let text = format!("--choices: an ending has {longest} tokens, and a sequence {context}");
        return Err(RunError::Refused(text));
    }
    let mut config = config.with(&config.model.with_context(context))?;
    config.data.kind = DataKind::Synthetic;
    config.train.micro_batch_size = 1;
    config.train.validation_micro_batches =
        asked.questions.iter().map(|question| question.endings.len() as u64).sum();
    Ok(config)
}

/// Returns the number that must divide the length of a sequence, because it is computed in pieces.
fn whole_pieces(config: &RunConfig) -> usize {
    let pieces = config.parallel.context_lanes;
    let lanes = config.parallel.tensor_lanes;
    match (pieces, lanes) {
        (1, _) => 1,
        (_, 1) => pieces,
        _ => 4 * pieces * lanes,
    }
}

/// Returns the configuration with all data as validation micro-batches of equal size.
fn cut(trained: &Trained, options: &EvaluateOptions) -> Result<RunConfig> {
    let config = &trained.config;
    let mut sets = input::settings(trained, options)?;
    if let Some(context) = options.context {
        sets.extend(config.model.with_context(context));
    }
    let micro_batches = config.train.micro_batches();
    let sized = |sequences: u64| {
        let global = sequences * micro_batches as u64;
        [format!("train.micro_batch_size={sequences}"), format!("train.global_batch_size={global}")]
    };
    sets.extend(sized(1));
    let (single, dataset) = opened(config.with(&sets)?, options)?;
    let of_each = dataset.tokens.as_ref().map_or(Vec::new(), |tokens| tokens.validation_sequences());
    let sequences = dataset.source.held_out_sequences().unwrap_or_else(|| of_each.iter().sum());
    let size = (1..=MOST_SEQUENCES).rev().find(|size| sequences.is_multiple_of(*size)).unwrap_or(1);
    let mut sets = sized(size).to_vec();
    sets.push(format!("train.validation_micro_batches={}", sequences / size));
    if !single.data.mixture.is_empty() {
        sets.push(mixture_by_size(&single.data.mixture, &of_each));
        sets.push(format!("data.base={}", serde_json::Value::from(single.data.base.to_string_lossy())));
    }
    Ok(single.with(&sets)?)
}

/// Opens the data of an evaluation. If `--data` is shorter than a sequence, it becomes one shorter sequence.
fn opened(config: RunConfig, options: &EvaluateOptions) -> Result<(RunConfig, Dataset)> {
    let error = match dataset::open(&config, DataScope::All) {
        Ok(dataset) => return Ok((config, dataset)),
        Err(error) => error,
    };
    let may_be_short = !options.data.is_empty() && options.context.is_none();
    let tokens = error.tokens_of_short_data().filter(|tokens| may_be_short && *tokens > 1);
    let Some(tokens) = tokens else { return Err(error.into()) };
    let pieces = whole_pieces(&config);
    let shorter = config.model.with_context(((tokens - 1) / pieces * pieces).max(1));
    let config = config.with(&shorter)?;
    let dataset = dataset::open(&config, DataScope::All)?;
    Ok((config, dataset))
}

/// Returns the setting of a mixture whose validation contains every sequence of its sources once.
fn mixture_by_size(sources: &[MixtureSource], sequences: &[u64]) -> String {
    let source = |(source, sequences): (&MixtureSource, &u64)| {
        // A JSON list of strings is also a TOML list.
        let list = |paths: &[String]| serde_json::Value::from(paths);
        let paths = list(&source.paths);
        let held_out = list(&source.validation_paths);
        format!("{{paths = {paths}, validation_paths = {held_out}, weight = {sequences}}}")
    };
    let sources: Vec<String> = sources.iter().zip(sequences).map(source).collect();
    format!("data.mixture=[{}]", sources.join(", "))
}

/// Makes every held-out token a target, except the first of each file. Packed documents and ignored targets
/// stay as in training, where the incomplete last sequence of a file is dropped.
fn whole(setup: &mut Setup, vocabulary: usize) -> Result<()> {
    let config = &setup.config;
    let Some(tokens) = &setup.dataset.tokens else { return Ok(()) };
    if config.data.pack_documents || config.data.document_mask || config.data.ignore.is_some() {
        return Ok(());
    }
    let slices: Vec<_> = tokens.splits().map(|split| split.validation.clone()).collect();
    let rows = config.train.micro_batch_size;
    let context = config.model.examples().units();
    let source = Sequences::new(slices, rows, context, vocabulary)?;
    let mut config = RunConfig::clone(config);
    config.train.validation_micro_batches = source.validation_micro_batches();
    setup.dataset = setup.dataset.clone().through(Arc::new(source));
    setup.config = Arc::new(config);
    Ok(())
}
