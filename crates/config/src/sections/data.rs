//! The keys of `[data]`.

use std::path::PathBuf;

use data::{ChatFormat, Crop, OrderKind, Role, TrainOn, ValidationSplit};
use keys::{Error, Interval, RawValues, Reading, Row, Takes, Value, choice, section};

use super::model::ModelSection;
use crate::choices::{DataKind, path_value, read_path};
use crate::mixture::{self, MixtureSource};
use crate::paths;

/// Maximum token id that a key accepts.
const MOST_TOKEN: u64 = u32::MAX as u64 - 1;
/// Data kinds that are read from files.
const FILES: &[&str] =
    &[DataKind::Text.name(), DataKind::Tokens.name(), DataKind::Chat.name(), PAIRS, IMAGES[0]];
/// Data kinds that need a tokenizer.
const TEXTS: &[&str] = &[DataKind::Text.name(), DataKind::Chat.name(), PAIRS];
/// The data kind of preference pairs.
const PAIRS: &str = DataKind::Preference.name();
const IMAGES: &[&str] = &[DataKind::Images.name()];
const CHAT: &[&str] = &[DataKind::Chat.name()];
/// Data kinds of JSON records with messages or answers.
const RECORDS: &[&str] = &[DataKind::Chat.name(), PAIRS];
/// Data kinds whose invalid records can be skipped.
const SKIPPING: &[&str] = &[DataKind::Chat.name(), PAIRS, IMAGES[0]];
/// Data kinds that consist of documents.
const DOCUMENTS: &[&str] = &[DataKind::Text.name(), DataKind::Tokens.name(), DataKind::Chat.name()];
/// Data kinds that are read as one long sequence of tokens.
const STREAMS: &[&str] = &[DataKind::Text.name(), DataKind::Tokens.name()];

section! {
    /// `[data]`: the training data.
    pub struct Data = "data" {
        /// The kind of data: text files, token shards, conversations, preference pairs, images with classes,
        /// or generated examples for benchmarks and planning.
        kind: DataKind = choice!(DataKind, DataKind::ALL).default("\"text\"");
        /// Files and globs, at least one: text; token shards in nanoGPT's or llm.c's format; conversations or
        /// preference pairs in JSON lines; image folders with a subfolder for each class, or CIFAR's binary
        /// files or their folder.
        paths: Vec<String> = Row::texts()
            .default("[]")
            .only(Data::kind, FILES)
            .any_bits()
            .finish(|written, raw| of_base(written, raw, Data::paths));
        /// Files and globs for validation. By default the end of `paths` is held out; for images, CIFAR's
        /// test file or the subfolder `val` beside `train` is used.
        validation_paths: Vec<String> = Row::texts()
            .default("[]")
            .only(Data::kind, FILES)
            .any_bits()
            .finish(|written, raw| of_base(written, raw, Data::validation_paths));
        /// Several sources instead of `paths`: `[[data.mixture]]` with `paths`, a `weight` that sets the
        /// share of the sequences, and optionally `validation_paths`.
        mixture: Vec<MixtureSource> =
            Row::new(Takes::Tables(MixtureSource::KEYS), MixtureSource::read_all, mixture::value)
                .default("[]")
                .only(Data::kind, STREAMS)
                .finish(sources_of_base);
        /// The directory that paths are relative to; itself relative to its default. Paths in `--set`, of
        /// this and all other keys, are relative to the current directory.
        base: PathBuf = Row::new(Takes::Text, paths::read, paths::value)
            .derived("the configuration file's directory", |_| Ok("".into()))
            .only(Data::kind, FILES)
            .any_bits()
            .local()
            .finish(|path, raw| {
                let is_files = FILES.contains(&raw.text(Data::kind)?.as_str());
                base_of(path, raw, is_files)
            });
        /// The tokenizer: "bytes", "gpt2", or the path of a tokenizer.json or its folder, relative to the
        /// configuration file; "none" for token shards that are never decoded to text.
        tokenizer: String = Row::text()
            .derived(
                "for token shards that of tokenizer.json or tokens.json beside them, or \"none\"; for text, \
                 conversations and answers tokenizer.json in `model.from`, if it has one; else \"bytes\"",
                |raw| {
                    let chosen = raw.text(Data::kind)?;
                    if chosen == DataKind::Tokens.name() {
                        return Ok("none".into());
                    }
                    let is_text = TEXTS.contains(&chosen.as_str());
                    let of_model = if is_text { paths::tokenizer_in(raw, ModelSection::from)? } else { None };
                    Ok(of_model.map_or_else(|| "bytes".into(), Value::from))
                },
            )
            .finish(|name, raw| paths::tokenizer(name, raw, Data::tokenizer));
        /// The format of conversations: "auto", detected from each record's keys; "messages", OpenAI's;
        /// "sharegpt"; "alpaca", read as messages; "alpaca_prompt", the prompt text of Alpaca's paper,
        /// without a chat template; "completion", TRL's `prompt` and `completion`.
        format: ChatFormat = choice!(ChatFormat, ChatFormat::ALL)
            .default("\"auto\"")
            .only(Data::kind, CHAT);
        /// The tokens to train on: "answers", the assistant's; "all", every token after the first; or a list
        /// of the roles "system", "user", "assistant" and "tool", for the text that their messages add.
        train_on: TrainOn = Row::new(Takes::TextOrTexts, read_train_on, write_train_on)
            .default("\"answers\"")
            .only(Data::kind, CHAT);
        /// The chat template file, relative to the configuration file; by default chat_template.jinja beside
        /// the tokenizer, or `chat_template` in its tokenizer_config.json.
        chat_template: Option<PathBuf> = Row::new(Takes::Text, read_path, path_value)
            .default("\"\"")
            .only(Data::kind, RECORDS)
            .any_bits()
            .local()
            .finish(|path, raw| paths::file(path, raw, Data::chat_template, "chat template"));
        /// Whether to identify the corpus by a hash of all its bytes, which reads it once when a run starts.
        /// By default it is identified by its size and a hash of samples.
        full_hash: bool = Row::flag().default("false").only(Data::kind, STREAMS).any_bits();
        /// Whether to fill sequences with whole documents and padding instead of splitting documents at
        /// sequence ends. Reads all data once at the start. Documents longer than a sequence are cut.
        pack_documents: bool = Row::flag()
            .derived("true for conversations without `group_by_length`, else false", |raw| {
                Ok((is_chat(raw)? && !raw.flag(Data::group_by_length)?).into())
            })
            .only(Data::kind, DOCUMENTS);
        /// Whether attention and positions stay within each document.
        document_mask: bool = Row::flag()
            .derived("`pack_documents` for conversations, else false", |raw| {
                let packs = match raw.is_set(Data::pack_documents) {
                    true => raw.flag(Data::pack_documents)?,
                    false => !raw.flag(Data::group_by_length)?,
                };
                Ok((is_chat(raw)? && packs).into())
            })
            .only(Data::kind, DOCUMENTS);
        /// Whether to group conversations or pairs of similar length into the same step, which reduces
        /// padding if nothing is packed. A step has one of four sequence lengths, chosen from the data,
        /// instead of `model.context` tokens.
        group_by_length: bool = Row::flag().default("false").only(Data::kind, RECORDS);
        /// The id of the token that begins documents; by default the tokenizer's.
        separator: Option<u32> = Row::new(
            Takes::ChoiceOrInteger(&["tokenizer"], 0, MOST_TOKEN),
            read_token,
            |token| token.map_or("tokenizer".into(), |token| u64::from(token).into()),
        ).default("\"tokenizer\"").only(Data::kind, STREAMS);
        /// The id of a token that is ignored by the loss if it is the target.
        ignore: Option<u32> = Row::new(
            Takes::ChoiceOrInteger(&["none"], 0, MOST_TOKEN),
            read_token,
            |token| token.map_or("none".into(), |token| u64::from(token).into()),
        ).default("\"none\"").only(Data::kind, STREAMS);
        /// The directory in which tokenized text is cached between runs, relative to the current directory;
        /// empty: `.tokens` beside the run directory. The byte tokenizer needs no cache.
        cache: PathBuf = Row::new(Takes::Text, paths::read, paths::value)
            .default("\"\"")
            .only(Data::kind, &["text"])
            .any_bits()
            .local();
        /// The fraction held out for validation if `validation_paths` is empty: of text, its end; of
        /// conversations or pairs, by `validation_split`; of images, at random. With 0, conversations and
        /// pairs have no validation.
        validation_fraction: f64 = Row::number(Interval::Fraction).default("0.05").only(Data::kind, FILES);
        /// The conversations or pairs to hold out: "end", the end of all files together; "shuffled", a random
        /// sample by `train.seed`; "per-file", the end of each file, where at least one record stays for
        /// training.
        validation_split: ValidationSplit = choice!(ValidationSplit, ValidationSplit::ALL)
            .default("\"end\"")
            .only(Data::kind, RECORDS);
        /// The order of training: "shuffled" in every epoch, or file by file from the first token on, as
        /// llm.c and modded-nanogpt read.
        order: OrderKind = choice!(OrderKind, OrderKind::ALL)
            .default("\"shuffled\"")
            .only(Data::kind, STREAMS);
        /// How training images are cropped: "padded", a random window of the model's size in the image with a
        /// black border; "resized", a random rectangle, scaled; "center"; "auto", "padded" if images have the
        /// model's size and otherwise "resized".
        crop: Crop = choice!(Crop, Crop::ALL).default("\"auto\"").only(Data::kind, IMAGES);
        /// Width in pixels of the border of `crop = "padded"`.
        crop_padding: usize = Row::count(0, 1024).default("4").only(Data::kind, IMAGES);
        /// Whether to mirror half of the training images.
        flip: bool = Row::flag().default("true").only(Data::kind, IMAGES);
        /// The mean subtracted from each channel, for values from 0 to 1: one number, or one per channel.
        mean: Vec<f64> =
            Row::numbers(Interval::NotNegative).default("[0.485, 0.456, 0.406]").only(Data::kind, IMAGES);
        /// The standard deviation that then divides each channel: one number, or one per channel.
        deviation: Vec<f64> =
            Row::numbers(Interval::Positive).default("[0.229, 0.224, 0.225]").only(Data::kind, IMAGES);
        /// α of the Beta(α, α) distribution with which mixup mixes each image and its class with another; 0:
        /// no mixup.
        mixup: f64 = Row::number(Interval::NotNegative).default("0").only(Data::kind, IMAGES);
        /// Whether to skip invalid records instead of stopping. An image that cannot be decoded is logged,
        /// counted and replaced by the next one. A line is counted and skipped if it is not a conversation or
        /// pair, if the template refuses it, or if it has no tokens to train on.
        skip_invalid: bool = Row::flag().default("false").only(Data::kind, SKIPPING);
        /// Micro-batches that each rank reads ahead on a separate thread; 0: it reads each when the step
        /// needs it.
        prefetch: usize = Row::count(0, 1024).default("4").any_bits();
    }
}

fn is_chat(raw: &RawValues) -> Result<bool, Error> {
    Ok(raw.text(Data::kind)? == DataKind::Chat.name())
}

/// Reads a token id; the key's named value is read as `None`.
fn read_token(value: &Value, takes: &Takes) -> Reading<Option<u32>> {
    match value {
        Value::Text(name) => Reading::within(takes.names().contains(&name.as_str()).then_some(None)),
        _ => takes.read_count(value).try_into().map(Some),
    }
}

/// Reads the value of `data.train_on`: a name, or a list of roles.
fn read_train_on(value: &Value, _: &Takes) -> Reading<TrainOn> {
    let names = |values: &[Value]| -> Option<Vec<String>> {
        values
            .iter()
            .map(|value| if let Value::Text(text) = value { Some(text.clone()) } else { None })
            .collect()
    };
    let read = match value {
        Value::Text(name) => TrainOn::named(name),
        Value::List(values) => match names(values) {
            Some(names) => TrainOn::of_roles(names.iter().map(String::as_str)),
            None => return Reading::WrongType,
        },
        _ => return Reading::WrongType,
    };
    read.map_or_else(
        || {
            let quoted = |names: &[&str]| names.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>();
            let names = quoted(&TrainOn::NAMES).join(", ");
            let roles = quoted(&Role::ALL.map(Role::name)).join(", ");
            Reading::Refused(format!("{value} is none of {names} and no list of roles out of {roles}"))
        },
        Reading::Good,
    )
}

/// Formats the value of `data.train_on`.
fn write_train_on(train_on: &TrainOn) -> Value {
    match train_on {
        TrainOn::Answers => TrainOn::NAMES[0].into(),
        TrainOn::All => TrainOn::NAMES[1].into(),
        TrainOn::Roles(roles) => {
            let names: Vec<String> = roles.iter().map(|role| role.name().to_owned()).collect();
            names.as_slice().into()
        }
    }
}

/// The keys whose paths and globs are relative to `data.base`.
const OF_BASE: [&str; 3] = [Data::paths, Data::validation_paths, Data::mixture];

/// Returns the absolute directory of the data; empty for synthetic data. Without a directory on the command
/// line, files named there are relative to the current one.
fn base_of(written: PathBuf, raw: &RawValues, is_files: bool) -> Result<PathBuf, Error> {
    if !is_files {
        return Ok(PathBuf::new());
    }
    match commanded(raw) {
        Some(key) => paths::in_utf8(raw, key, "current directory", raw.directory_of(key)),
        None => base_of_file(written, raw),
    }
}

fn base_of_file(written: PathBuf, raw: &RawValues) -> Result<PathBuf, Error> {
    let base = paths::normal_path(&raw.directory_of(Data::base).join(written));
    paths::in_utf8(raw, Data::base, "directory of the data", base)
}

/// Returns a key whose files the command line sets, if it does not also set `data.base`.
fn commanded(raw: &RawValues) -> Option<&'static str> {
    let names = |key: &&str| raw.is_override(key) && !raw.is_empty(key);
    OF_BASE.into_iter().find(names).filter(|_| !raw.is_override(Data::base))
}

/// Returns the paths and globs of `key` relative to [`base_of`]. If the command line makes the current
/// directory the base, paths written in the file become absolute.
fn of_base(patterns: Vec<String>, raw: &RawValues, key: &str) -> Result<Vec<String>, Error> {
    if patterns.is_empty() || raw.is_override(key) || commanded(raw).is_none() {
        return Ok(patterns);
    }
    let written = if raw.is_set(Data::base) { raw.text(Data::base)? } else { String::new() };
    let base = base_of_file(written.into(), raw)?;
    Ok(patterns.iter().map(|pattern| data::absolute(&base, pattern)).collect())
}

/// Applies [`of_base`] to the sources of a mixture.
fn sources_of_base(mut sources: Vec<MixtureSource>, raw: &RawValues) -> Result<Vec<MixtureSource>, Error> {
    for source in &mut sources {
        for patterns in [&mut source.paths, &mut source.validation_paths] {
            *patterns = of_base(std::mem::take(patterns), raw, Data::mixture)?;
        }
    }
    Ok(sources)
}
