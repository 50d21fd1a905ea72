//! The keys of `[data]`.

use std::path::PathBuf;

use data::{ChatFormat, Crop, OrderKind, Role, TrainOn, ValidationSplit};
use keys::{Error, Interval, RawValues, Reading, Row, Takes, Value, choice, section};

use super::model::ModelSection;
use crate::choices::{DataKind, path_value, read_path};
use crate::mixture::{self, MixtureSource};
use crate::paths;

/// The largest token number that a key accepts.
const MOST_TOKEN: u64 = u32::MAX as u64 - 1;
/// The kinds of data that are read from files.
const FILES: &[&str] =
    &[DataKind::Text.name(), DataKind::Tokens.name(), DataKind::Chat.name(), PAIRS, IMAGES[0]];
/// The kinds of data of which a tokenizer makes tokens.
const TEXTS: &[&str] = &[DataKind::Text.name(), DataKind::Chat.name(), PAIRS];
/// The kind of data that is pairs of answers.
const PAIRS: &str = DataKind::Preference.name();
const IMAGES: &[&str] = &[DataKind::Images.name()];
const CHAT: &[&str] = &[DataKind::Chat.name()];
/// Kinds of data that are objects of JSON with messages or answers.
const RECORDS: &[&str] = &[DataKind::Chat.name(), PAIRS];
/// Kinds of data of which invalid records may be left out.
const SKIPPING: &[&str] = &[DataKind::Chat.name(), PAIRS, IMAGES[0]];
/// Kinds of data with documents.
const DOCUMENTS: &[&str] = &[DataKind::Text.name(), DataKind::Tokens.name(), DataKind::Chat.name()];
/// Kinds of data that are read as one long sequence of tokens.
const STREAMS: &[&str] = &[DataKind::Text.name(), DataKind::Tokens.name()];

section! {
    /// `[data]`: the data that is trained on.
    pub struct Data = "data" {
        /// Text files, token shards, conversations, pairs of answers of which one is preferred, images of
        /// classes, or examples from a generator for benchmarks and planning.
        kind: DataKind = choice!(DataKind, DataKind::ALL).default("\"text\"");
        /// Files and globs of text, of token shards in nanoGPT's or llm.c's format, or of conversations or
        /// pairs of answers in JSON lines; folders of images with a subfolder for each class, or CIFAR's
        /// binary files or their folder; at least one.
        paths: Vec<String> = Row::texts()
            .default("[]")
            .only(Data::kind, FILES)
            .any_bits()
            .finish(|written, raw| of_base(written, raw, Data::paths));
        /// Files and globs that are held out for validation; without one, the end of `paths` is, or for
        /// images CIFAR's test file, or the subfolder `val` beside `train`.
        validation_paths: Vec<String> = Row::texts()
            .default("[]")
            .only(Data::kind, FILES)
            .any_bits()
            .finish(|written, raw| of_base(written, raw, Data::validation_paths));
        /// Sources in place of `paths`, each with its share of the sequences: `[[data.mixture]]` with
        /// `paths`, `weight` and, if need be, `validation_paths`.
        mixture: Vec<MixtureSource> =
            Row::new(Takes::Tables(MixtureSource::KEYS), MixtureSource::read_all, mixture::value)
                .default("[]")
                .only(Data::kind, STREAMS)
                .finish(sources_of_base);
        /// The directory that paths are relative to; relative to its default itself. Paths that `--set` names
        /// are relative to the current directory, also those of other keys.
        base: PathBuf = Row::new(Takes::Text, paths::read, paths::value)
            .derived("the configuration file's directory", |_| Ok("".into()))
            .only(Data::kind, FILES)
            .any_bits()
            .local()
            .finish(|path, raw| {
                let is_files = FILES.contains(&raw.text(Data::kind)?.as_str());
                base_of(path, raw, is_files)
            });
        /// The tokenizer: "bytes", "gpt2", or the path of a tokenizer.json or its folder, relative to this
        /// file; "none" for token shards whose text does not matter.
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
        /// The format of conversations: "auto", the one that each shows by its keys; "messages", OpenAI's;
        /// "sharegpt"; "alpaca", as messages; "alpaca_prompt", as the text of Alpaca's paper, without a chat
        /// template; "completion", TRL's `prompt` and `completion`.
        format: ChatFormat = choice!(ChatFormat, ChatFormat::ALL)
            .default("\"auto\"")
            .only(Data::kind, CHAT);
        /// The tokens that are learnt: "answers", those of the assistant; "all", every token of the text
        /// after the first; or a list of the roles "system", "user", "assistant" and "tool", what their
        /// messages add to the text.
        train_on: TrainOn = Row::new(Takes::TextOrTexts, read_train_on, write_train_on)
            .default("\"answers\"")
            .only(Data::kind, CHAT);
        /// The file of the chat template, relative to this file; by default chat_template.jinja beside the
        /// tokenizer, or `chat_template` in its tokenizer_config.json.
        chat_template: Option<PathBuf> = Row::new(Takes::Text, read_path, path_value)
            .default("\"\"")
            .only(Data::kind, RECORDS)
            .any_bits()
            .local()
            .finish(|path, raw| paths::file(path, raw, Data::chat_template, "chat template"));
        /// Whether the corpus is distinguished from others by a hash of all of it, which reads it once when a
        /// run starts, and not by its size and a hash of pieces.
        full_hash: bool = Row::flag().default("false").only(Data::kind, STREAMS).any_bits();
        /// Whether sequences are filled with whole documents and padding, rather than with what follows in
        /// the text. All data is read once at the start. A document longer than a sequence is cut.
        pack_documents: bool = Row::flag()
            .derived("true for conversations without `group_by_length`, else false", |raw| {
                Ok((is_chat(raw)? && !raw.flag(Data::group_by_length)?).into())
            })
            .only(Data::kind, DOCUMENTS);
        /// Whether attention and positions stay within a document.
        document_mask: bool = Row::flag()
            .derived("`pack_documents` for conversations, else false", |raw| {
                let packs = match raw.is_set(Data::pack_documents) {
                    true => raw.flag(Data::pack_documents)?,
                    false => !raw.flag(Data::group_by_length)?,
                };
                Ok((is_chat(raw)? && packs).into())
            })
            .only(Data::kind, DOCUMENTS);
        /// Whether a step has conversations or pairs of like lengths, in sequences of one of four lengths,
        /// which the data decides, instead of `model.context` tokens: less padding where nothing is packed.
        group_by_length: bool = Row::flag().default("false").only(Data::kind, RECORDS);
        /// The token that documents begin with, by its number; by default the tokenizer's.
        separator: Option<u32> = Row::new(
            Takes::ChoiceOrInteger(&["tokenizer"], 0, MOST_TOKEN),
            read_token,
            |token| token.map_or("tokenizer".into(), |token| u64::from(token).into()),
        ).default("\"tokenizer\"").only(Data::kind, STREAMS);
        /// The token that does not count in the loss where it is a target, by its number.
        ignore: Option<u32> = Row::new(
            Takes::ChoiceOrInteger(&["none"], 0, MOST_TOKEN),
            read_token,
            |token| token.map_or("none".into(), |token| u64::from(token).into()),
        ).default("\"none\"").only(Data::kind, STREAMS);
        /// The directory in which tokens of text are kept between runs, relative to the current directory;
        /// empty: `.tokens` beside the run directory. Text of bytes needs none.
        cache: PathBuf = Row::new(Takes::Text, paths::read, paths::value)
            .default("\"\"")
            .only(Data::kind, &["text"])
            .any_bits()
            .local();
        /// The fraction of the text, at its end, of conversations or pairs, by `validation_split`, or of the
        /// images, at random, that is held out for validation if `validation_paths` names nothing. With 0,
        /// conversations and pairs have no validation.
        validation_fraction: f64 = Row::number(Interval::Fraction).default("0.05").only(Data::kind, FILES);
        /// The conversations or pairs that are held out: the "end" of all files together; "shuffled", a
        /// random sample of all, by `train.seed`; or "per-file", the end of each file, which keeps at least
        /// one.
        validation_split: ValidationSplit = choice!(ValidationSplit, ValidationSplit::ALL)
            .default("\"end\"")
            .only(Data::kind, RECORDS);
        /// The order of training: every epoch shuffled, or file by file from the first token on, as llm.c and
        /// modded-nanogpt read.
        order: OrderKind = choice!(OrderKind, OrderKind::ALL)
            .default("\"shuffled\"")
            .only(Data::kind, STREAMS);
        /// The part of a training image that a sample shows: "padded", a window of the model's size in the
        /// image with a black border; "resized", a random rectangle, scaled; "center"; or "auto": "padded"
        /// for images of the model's size, "resized" for others.
        crop: Crop = choice!(Crop, Crop::ALL).default("\"auto\"").only(Data::kind, IMAGES);
        /// Pixels of the border of `crop = "padded"`.
        crop_padding: usize = Row::count(0, 1024).default("4").only(Data::kind, IMAGES);
        /// Whether half of the training samples are mirrored.
        flip: bool = Row::flag().default("true").only(Data::kind, IMAGES);
        /// The mean that is subtracted from each channel of values from 0 to 1: one number, or one for each.
        mean: Vec<f64> =
            Row::numbers(Interval::NotNegative).default("[0.485, 0.456, 0.406]").only(Data::kind, IMAGES);
        /// The standard deviation that each channel is then divided by.
        deviation: Vec<f64> =
            Row::numbers(Interval::Positive).default("[0.229, 0.224, 0.225]").only(Data::kind, IMAGES);
        /// α of the Beta(α, α) distribution by which mixup mixes each sample with another one, and their
        /// classes; 0: it does not.
        mixup: f64 = Row::number(Interval::NotNegative).default("0").only(Data::kind, IMAGES);
        /// Whether an image that cannot be decoded is named, counted and replaced by the next one, rather
        /// than refused; and a line that is no conversation or pair, that the template refuses or of which
        /// nothing is learnt, is counted and left out.
        skip_invalid: bool = Row::flag().default("false").only(Data::kind, SKIPPING);
        /// Micro-batches that each rank reads ahead of its step on a thread of its own; 0: it reads each when
        /// the step needs it.
        prefetch: usize = Row::count(0, 1024).default("4").any_bits();
    }
}

fn is_chat(raw: &RawValues) -> Result<bool, Error> {
    Ok(raw.text(Data::kind)? == DataKind::Chat.name())
}

/// Reads a token number; the key's name for none is `None`.
fn read_token(value: &Value, takes: &Takes) -> Reading<Option<u32>> {
    match value {
        Value::Text(name) => Reading::within(takes.names().contains(&name.as_str()).then_some(None)),
        _ => takes.read_count(value).try_into().map(Some),
    }
}

/// Reads a name of `data.train_on`, or a list of roles.
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

/// Returns the value of `data.train_on` as it is written.
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

/// The keys of paths and globs that are relative to `data.base`.
const OF_BASE: [&str; 3] = [Data::paths, Data::validation_paths, Data::mixture];

/// Returns the absolute directory of the data; empty for synthetic data. Files that the command line names
/// without a directory are relative to the current one.
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

/// Returns a key by which the command line names files without naming their directory.
fn commanded(raw: &RawValues) -> Option<&'static str> {
    let names = |key: &&str| raw.is_override(key) && !raw.is_empty(key);
    OF_BASE.into_iter().find(names).filter(|_| !raw.is_override(Data::base))
}

/// Returns paths and globs of the key at `key` relative to [`base_of`]: unchanged, or absolute if they are
/// those of the file and others are relative to the current directory.
fn of_base(patterns: Vec<String>, raw: &RawValues, key: &str) -> Result<Vec<String>, Error> {
    if patterns.is_empty() || raw.is_override(key) || commanded(raw).is_none() {
        return Ok(patterns);
    }
    let written = if raw.is_set(Data::base) { raw.text(Data::base)? } else { String::new() };
    let base = base_of_file(written.into(), raw)?;
    Ok(patterns.iter().map(|pattern| data::absolute(&base, pattern)).collect())
}

/// Does the same as [`of_base`] for the sources of a mixture.
fn sources_of_base(mut sources: Vec<MixtureSource>, raw: &RawValues) -> Result<Vec<MixtureSource>, Error> {
    for source in &mut sources {
        for patterns in [&mut source.paths, &mut source.validation_paths] {
            *patterns = of_base(std::mem::take(patterns), raw, Data::mixture)?;
        }
    }
    Ok(sources)
}
