//! Construction of the sources of conversations and of pairs of answers from the configuration.

use std::path::Path;

use config::{Data, LossMean, RunConfig};
use data::{
    ChatOptions, ChatReading, ChatSource, ChatTemplate, Corpus, CutFigures, PairOptions, PairSource,
    Tokenizer, read_pairs,
};
use nn::Examples;

use crate::error::{Result, WorkerError};
use config::PreferenceLoss;

/// The error of data that `key` names.
pub(crate) fn refused(config: &RunConfig, key: &'static str, source: data::Error) -> WorkerError {
    WorkerError::Data { origin: config.origins.of(key), key, source: source.into() }
}

/// Checks that the files are there, without reading them.
///
/// # Errors
/// Names and globs without a file, with their key; a model of other examples.
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

/// Vocabulary and context of the model.
///
/// # Errors
/// A model of other examples.
fn sizes(config: &RunConfig) -> Result<(usize, usize)> {
    match config.model.examples() {
        Examples::Tokens { vocabulary, context } => Ok((vocabulary, context)),
        Examples::Numbers { .. } | Examples::Images { .. } => {
            let kind = config.data.kind.name();
            Err(WorkerError::Refused(format!("data.kind = \"{kind}\" needs a model of tokens")))
        }
    }
}

/// The chat template of the run.
///
/// # Errors
/// None beside the tokenizer; one that cannot be read.
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

/// The chat template of the run, or the reason why there is none, which matters if messages need it.
///
/// # Errors
/// One that `data.chat_template` names and that cannot be read.
fn optional_template(config: &RunConfig) -> Result<std::result::Result<ChatTemplate, data::Error>> {
    match template(config) {
        Err(source) if config.data.chat_template.is_some() => {
            Err(refused(config, Data::chat_template, source))
        }
        template => Ok(template),
    }
}

/// Warns in one line of what is longer than a sequence.
fn warn_of_cut(config: &RunConfig, [training, validation]: [CutFigures; 2], noun: &str) {
    let mut all = validation;
    if config.data.validation_paths != config.data.paths {
        all += training;
    }
    if let Some(sentence) = all.sentence(noun, config.model.examples().units()) {
        tracing::warn!("{sentence}: model.context is their length");
    }
}

/// Reads the files of training and of validation with `read`; without files of validation, these are the last
/// of training.
///
/// # Errors
/// Errors of `read`, with their key.
fn split<T: Clone>(
    config: &RunConfig,
    read: impl Fn(&[String]) -> std::result::Result<Vec<T>, data::Error>,
) -> Result<(Vec<T>, Vec<T>)> {
    let data = &config.data;
    let wrong = |key, source| match source {
        // Messages need a template, which is not found by the paths of the data.
        data::Error::Template { .. } => refused(config, Data::chat_template, source),
        _ => refused(config, key, source),
    };
    let mut training = read(&data.paths).map_err(|source| wrong(Data::paths, source))?;
    // An evaluation holds out what it names.
    if data.validation_paths == data.paths {
        return Ok((training.clone(), training));
    }
    if !data.validation_paths.is_empty() {
        let validation = read(&data.validation_paths);
        return Ok((training, validation.map_err(|source| wrong(Data::validation_paths, source))?));
    }
    let held_out = (training.len() as f64 * data.validation_fraction).ceil() as usize;
    let validation = training.split_off(training.len() - held_out.min(training.len()));
    Ok((training, validation))
}

/// Opens the conversations of a configuration.
///
/// # Errors
/// Wrong data, with its key; a model of other examples.
pub(crate) fn open(config: &RunConfig) -> Result<ChatSource> {
    let (data, train) = (&config.data, &config.train);
    let template = optional_template(config)?;
    let (vocabulary, context) = sizes(config)?;
    let reading = ChatReading {
        format: data.format,
        template: template.as_ref(),
        tokenizer: &config.tokenizer,
        vocabulary,
    };
    let (training, validation) = split(config, |paths| reading.read(&data::files(&data.base, paths)?))?;
    let options = ChatOptions {
        context,
        micro_batch: train.micro_batch_size,
        seed: train.seed,
        validation_micro_batches: train.validation_micro_batches,
        // An empty micro-batch has no mean.
        repeats_validation: train.loss_mean == LossMean::MicroBatches,
        packs: data.pack_documents,
        masks: data.document_mask,
        marks_tokens: config.masks_padding(),
    };
    let source = ChatSource::new(training, validation, options);
    let source = source.map_err(|source| refused(config, Data::paths, source))?;
    let (conversations, sequences) = source.training();
    warn_of_cut(config, source.cut(), "conversations");
    tracing::info!("{conversations} conversations in {sequences} sequences");
    Ok(source)
}

/// Opens the pairs of answers of a configuration. Only messages need a chat template.
///
/// # Errors
/// Wrong data, with its key; a model of other examples.
pub(crate) fn open_pairs(config: &RunConfig) -> Result<PairSource> {
    let (data, train) = (&config.data, &config.train);
    let template = optional_template(config)?;
    let (vocabulary, context) = sizes(config)?;
    let (training, validation) = split(config, |paths| {
        let files = data::files(&data.base, paths)?;
        read_pairs(&files, template.as_ref(), &config.tokenizer, vocabulary)
    })?;
    let options = PairOptions {
        context,
        micro_batch: train.micro_batch_size,
        seed: train.seed,
        validation_micro_batches: train.validation_micro_batches,
        learns_prompts: config.preference.loss == PreferenceLoss::Orpo,
        marks_tokens: config.masks_padding(),
    };
    let source = PairSource::new(training, validation, options);
    let source = source.map_err(|source| refused(config, Data::paths, source))?;
    warn_of_cut(config, source.cut(), "pairs of answers");
    tracing::info!("{} pairs of answers", source.count());
    Ok(source)
}
