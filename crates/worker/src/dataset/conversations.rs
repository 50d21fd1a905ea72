//! Opens conversations and preference pairs as configured.

use std::path::Path;

use config::{Data, LossMean, RunConfig, SampleLengths};
use data::{
    ChatOptions, ChatReading, ChatSource, ChatTemplate, Conversation, Corpus, CutFigures, HoldOut, Pair,
    PairOptions, PairReading, PairSource, Source, Tokenizer,
};
use nn::Examples;
use telemetry::units::grouped;

use super::read_ahead::{ReadAhead, Split};
use crate::error::{Result, WorkerError};
use config::PreferenceLoss;

/// Returns the error for invalid data that the key `key` names.
pub(crate) fn refused(config: &RunConfig, key: &'static str, source: data::Error) -> WorkerError {
    WorkerError::Data { origin: config.origins.find(key), key, source: source.into() }
}

/// Checks that the data files exist, without reading them.
///
/// # Errors
/// No file matches the paths of a key, or the model takes other examples.
pub(crate) fn check_files(config: &RunConfig) -> Result<()> {
    let data = &config.data;
    sizes(config)?;
    for (key, paths) in [(Data::paths, &data.paths), (Data::validation_paths, &data.validation_paths)] {
        if !paths.is_empty() || key == Data::paths {
            Corpus::open(&data.base, paths).map_err(|source| refused(config, key, source))?;
        }
    }
    Ok(())
}

/// Returns the model's vocabulary and context.
///
/// # Errors
/// The model takes other examples.
fn sizes(config: &RunConfig) -> Result<(usize, usize)> {
    match config.model.examples() {
        Examples::Tokens { vocabulary, context } => Ok((vocabulary, context)),
        Examples::Numbers { .. } | Examples::Images { .. } => {
            let kind = config.data.kind.name();
            Err(WorkerError::Refused(format!("data.kind = \"{kind}\" needs a model of tokens")))
        }
    }
}

/// Reads the chat template of the run.
///
/// # Errors
/// There is none beside the tokenizer, or it cannot be read.
fn template(config: &RunConfig) -> std::result::Result<ChatTemplate, data::Error> {
    match &config.data.chat_template {
        Some(file) => ChatTemplate::of_file(file, &config.tokenizer),
        None => match &config.tokenizer {
            Tokenizer::File(_) => {
                let folder = Path::new(config.tokenizer.name()).parent().unwrap_or(Path::new(""));
                ChatTemplate::of_folders(&[folder], &config.tokenizer)
            }
            own => {
                let reason = "no chat template belongs to this tokenizer: name the file of one".to_owned();
                Err(data::Error::Template { path: own.name().into(), reason })
            }
        },
    }
}

/// Reads the chat template of the run, or returns why there is none, which is an error only if messages need
/// it.
///
/// # Errors
/// The template named by `data.chat_template` cannot be read.
fn optional_template(config: &RunConfig) -> Result<std::result::Result<ChatTemplate, data::Error>> {
    match template(config) {
        Err(source) if config.data.chat_template.is_some() => {
            Err(refused(config, Data::chat_template, source))
        }
        template => Ok(template),
    }
}

/// Logs one warning about records that are longer than a sequence.
fn warn_of_cut(config: &RunConfig, [training, validation]: [CutFigures; 2], noun: &str) {
    let mut all = validation;
    if config.data.validation_paths != config.data.paths {
        all += training;
    }
    if let Some(sentence) = all.sentence(noun, config.model.examples().units()) {
        tracing::warn!("{sentence}: model.context is their length");
    }
}

/// Reads training and validation files with `read`. Without validation files, a part of the training records
/// is held out.
///
/// # Errors
/// Errors of `read`, with the key that names the data.
fn split<T: Clone>(
    config: &RunConfig,
    read: impl Fn(&[String]) -> std::result::Result<Vec<Vec<T>>, data::Error>,
) -> Result<Split<T>> {
    let data = &config.data;
    let wrong = |key, source| match source {
        // Messages need a template, which is not found by the paths of the data.
        data::Error::Template { .. } => refused(config, Data::chat_template, source),
        _ => refused(config, key, source),
    };
    let training = read(&data.paths).map_err(|source| wrong(Data::paths, source))?;
    // An evaluation holds out what it names.
    if data.validation_paths == data.paths {
        let training = training.concat();
        return Ok((training.clone(), training));
    }
    if !data.validation_paths.is_empty() {
        let validation = read(&data.validation_paths);
        let validation = validation.map_err(|source| wrong(Data::validation_paths, source))?;
        return Ok((training.concat(), validation.concat()));
    }
    let hold_out =
        HoldOut { split: data.validation_split, fraction: data.validation_fraction, seed: config.train.seed };
    Ok(hold_out.split(training))
}

/// Conversations that were read to determine their lengths.
static CONVERSATIONS: ReadAhead<Conversation> = ReadAhead::new();
/// Preference pairs that were read to determine their lengths.
static PAIRS: ReadAhead<Pair> = ReadAhead::new();

/// Returns the settings that determine which samples are read and how they are tokenized.
fn settings(config: &RunConfig) -> Result<String> {
    let (vocabulary, _) = sizes(config)?;
    let data = config.section_toml("data");
    let seed = config.train.seed;
    Ok(format!("{data}{vocabulary} {} {seed}", config.tokenizer.identity()))
}

/// Reads the configured conversations.
///
/// # Errors
/// The data is invalid, or the model takes other examples.
fn read(config: &RunConfig) -> Result<Split<Conversation>> {
    let data = &config.data;
    let template = optional_template(config)?;
    let (vocabulary, _) = sizes(config)?;
    let reading = ChatReading {
        format: data.format,
        template: template.as_ref(),
        tokenizer: &config.tokenizer,
        vocabulary,
        train_on: &data.train_on,
        skip_invalid: data.skip_invalid,
    };
    split(config, |paths| reading.read(&data::files(&data.base, paths)?))
}

/// Reads the configured conversations, keeps them for opening, and returns their lengths.
///
/// # Errors
/// The data is invalid, or the model takes other examples.
pub(crate) fn lengths(config: &RunConfig) -> Result<SampleLengths> {
    let samples = read(config)?;
    let lengths = longest(&samples, |conversation| conversation.tokens.len());
    CONVERSATIONS.keep(settings(config)?, samples);
    Ok(lengths)
}

/// Reads the configured preference pairs, keeps them for opening, and returns the lengths of their answers.
///
/// # Errors
/// The data is invalid, or the model takes other examples.
pub(crate) fn pair_lengths(config: &RunConfig) -> Result<SampleLengths> {
    let samples = read_of_pairs(config)?;
    let lengths = longest(&samples, |pair| pair.chosen.tokens.len().max(pair.rejected.tokens.len()));
    PAIRS.keep(settings(config)?, samples);
    Ok(SampleLengths { samples: 2 * lengths.samples, ..lengths })
}

/// Returns the number of samples and the positions that the longest needs. A sample of n tokens needs n - 1,
/// because its last token is only a target.
fn longest<T>((training, validation): &Split<T>, tokens: impl Fn(&T) -> usize) -> SampleLengths {
    let longest = training.iter().chain(validation).map(tokens).max().unwrap_or(0);
    SampleLengths { samples: training.len() + validation.len(), longest: longest.saturating_sub(1).max(1) }
}

/// Opens the configured conversations.
///
/// # Errors
/// The data is invalid, or the model takes other examples.
pub(crate) fn open(config: &RunConfig) -> Result<ChatSource> {
    let data = &config.data;
    let train = &config.train;
    let (_, context) = sizes(config)?;
    let known = CONVERSATIONS.take(&settings(config)?);
    let (training, validation) = known.map_or_else(|| read(config), Ok)?;
    let options = ChatOptions {
        context,
        micro_batch: train.micro_batch_size,
        seed: train.seed,
        validation_micro_batches: config.validation_micro_batches(),
        // An empty micro-batch has no mean.
        repeats_validation: train.loss_mean == LossMean::MicroBatches,
        packs: data.pack_documents,
        masks: data.document_mask,
        marks_tokens: config.masks_padding(),
        groups: data.group_by_length.then_some(train.global_batch_size),
    };
    let source = ChatSource::new(training, validation, options);
    let source = source.map_err(|source| refused(config, Data::paths, source))?;
    let (conversations, sequences) = source.training();
    warn_of_cut(config, source.cut(), "conversations");
    let [conversations, sequences] = [conversations, sequences].map(|count| grouped(count as u64));
    let lengths = lengths_in_words(&source, context);
    let padding = 100.0 * (1.0 - source.token_share() / mean_share(&source, context));
    tracing::info!(
        "{conversations} conversations in {sequences} sequences of {lengths} tokens, of which {padding:.0} % are \
         padding"
    );
    Ok(source)
}

/// Returns the mean length of training sequences as a fraction of `context`.
fn mean_share(source: &dyn Source, context: usize) -> f64 {
    source.lengths().map_or(1.0, |lengths| lengths.mean() / context as f64)
}

/// Formats the lengths of training sequences.
fn lengths_in_words(source: &dyn Source, context: usize) -> String {
    let all: Vec<_> = match source.lengths() {
        Some(lengths) => lengths.shares().iter().map(|(length, _)| length.to_string()).collect(),
        None => vec![context.to_string()],
    };
    all.join(", ")
}

/// Reads the pairs of answers of a configuration. Only messages need a chat template.
///
/// # Errors
/// The data is invalid, or the model takes other examples.
fn read_of_pairs(config: &RunConfig) -> Result<Split<Pair>> {
    let template = optional_template(config)?;
    let (vocabulary, _) = sizes(config)?;
    let data = &config.data;
    let reading = PairReading {
        template: template.as_ref(),
        tokenizer: &config.tokenizer,
        vocabulary,
        skip_invalid: data.skip_invalid,
    };
    split(config, |paths| reading.read(&data::files(&data.base, paths)?))
}

/// Opens the configured preference pairs.
///
/// # Errors
/// The data is invalid, or the model takes other examples.
pub(crate) fn open_pairs(config: &RunConfig) -> Result<PairSource> {
    let data = &config.data;
    let train = &config.train;
    let (_, context) = sizes(config)?;
    let known = PAIRS.take(&settings(config)?);
    let (training, validation) = known.map_or_else(|| read_of_pairs(config), Ok)?;
    let options = PairOptions {
        context,
        micro_batch: train.micro_batch_size,
        seed: train.seed,
        validation_micro_batches: config.validation_micro_batches(),
        learns_prompts: config.preference.loss == PreferenceLoss::Orpo,
        marks_tokens: config.masks_padding(),
        groups: data.group_by_length.then_some(train.global_batch_size),
    };
    let source = PairSource::new(training, validation, options);
    let source = source.map_err(|source| refused(config, Data::paths, source))?;
    warn_of_cut(config, source.cut(), "pairs of answers");
    let lengths = lengths_in_words(&source, context);
    let padding = 100.0 * (1.0 - source.token_share() / mean_share(&source, context));
    let pairs = grouped(source.count() as u64);
    tracing::info!(
        "{pairs} pairs of answers in sequences of {lengths} tokens, of which {padding:.0} % are padding"
    );
    Ok(source)
}
