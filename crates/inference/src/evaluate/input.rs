//! The data of an evaluation: named files, or data held out by a run.

use std::path::{Path, PathBuf};

use checkpoint::Share;
use config::{Data, DataKind};
use data::{Error, FileContents};
use nn::Examples;
use run::{Result, RunError};
use serde_json::Value;

use super::options::EvaluateOptions;
use crate::location::{NO_DATA, TOKENIZER, toml_path};
use crate::trained::Trained;

/// Finds the model and verifies a `share` of a checkpoint's files. For a folder, the named data becomes its
/// configuration's `[data]`, so that `--set` may change its keys.
///
/// # Errors
/// There is no model, the data is of several kinds, or settings are invalid.
pub(super) fn trained(options: &EvaluateOptions, share: Share) -> Result<Trained> {
    let EvaluateOptions { data, sets, .. } = options;
    let location = options.location();
    if data.is_empty() || !location.is_folder() {
        return Trained::find(location, sets, share);
    }
    let base = current_directory()?;
    let kind = match location.config(NO_DATA, &[])?.model.examples() {
        Examples::Images { .. } => DataKind::Images,
        Examples::Tokens { .. } | Examples::Numbers { .. } => kind_of(data, &base)?,
    };
    // Adapters may have their own tokenizer, with more tokens than the model's.
    let file = location.path.join(TOKENIZER);
    let tokenizer = match kind {
        DataKind::Tokens => "tokenizer = \"none\"\n".to_owned(),
        DataKind::Text | DataKind::Chat if file.symlink_metadata().is_ok() => {
            format!("tokenizer = {}\n", toml_path(&file)?)
        }
        _ => String::new(),
    };
    // JSON lists and strings are valid TOML.
    let paths = Value::from(data.clone());
    let base = Value::from(base.to_string_lossy());
    let kind = kind.name();
    let section =
        format!("kind = \"{kind}\"\npaths = {paths}\nvalidation_paths = {paths}\nbase = {base}\n{tokenizer}");
    Trained::of_folder(location, &section, sets)
}

/// Returns the settings for the data to evaluate.
///
/// # Errors
/// The model has no data and none is named, or the data is of several kinds.
pub(super) fn settings(trained: &Trained, options: &EvaluateOptions) -> Result<Vec<String>> {
    let config = &trained.config;
    // Packed documents are consecutive in validation, whatever the order of training.
    let order = if config.data.pack_documents { "shuffled" } else { "sequential" };
    let in_order = format!("data.order={order}");
    if options.data.is_empty() {
        check_own(trained, options)?;
        let has_order = config.data.kind != DataKind::Chat;
        return Ok(has_order.then_some(in_order).into_iter().collect());
    }
    let base = current_directory()?;
    let is_decided = !trained.is_run() || config.origins.find(Data::kind).is_override();
    let kind = match config.data.kind {
        kind if is_decided => kind,
        // A file that a run on conversations cannot read is refused with its line.
        DataKind::Chat if !options.data.iter().any(|path| is_shard(path)) => DataKind::Chat,
        _ => kind_of(&options.data, &base)?,
    };
    check_kind(kind, options)?;
    if kind == DataKind::Chat && config.data.kind != kind {
        tracing::info!("the answers of conversations are scored: --set data.kind=text scores whole lines");
    }
    // JSON lists and strings are valid TOML.
    let paths = Value::from(options.data.clone());
    let mut settings = vec![
        format!("data.kind={}", kind.name()),
        format!("data.paths={paths}"),
        format!("data.validation_paths={paths}"),
        format!("data.base={}", Value::from(base.to_string_lossy())),
    ];
    if kind != DataKind::Chat {
        settings.extend(["data.mixture=[]".to_owned(), in_order]);
    }
    Ok(settings)
}

/// Refuses a model that has no data.
pub(super) fn check_own(trained: &Trained, options: &EvaluateOptions) -> Result<()> {
    if trained.config.data.kind == DataKind::Synthetic {
        let text = format!("{}: it has no data of its own: --data FILE", options.model.display());
        return Err(RunError::Refused(text));
    }
    check_kind(trained.config.data.kind, options)?;
    if !trained.config.validates() {
        let text = format!(
            "{}: its run had no validation data (data.validation_fraction = 0): --data FILE",
            options.model.display()
        );
        return Err(RunError::Refused(text));
    }
    Ok(())
}

/// Refuses preference pairs, whose loss compares the model with the run's starting point.
fn check_kind(kind: DataKind, options: &EvaluateOptions) -> Result<()> {
    if kind != DataKind::Preference {
        return Ok(());
    }
    Err(RunError::Refused(format!(
        "{}: the losses of data.kind = \"preference\" are those of a run's validations: --data FILE \
         evaluates texts or conversations",
        options.model.display()
    )))
}

fn is_shard(path: &str) -> bool {
    path.ends_with(".bin")
}

/// Returns the kind of token data, determined by file names and contents.
///
/// # Errors
/// The files are of several kinds, or of an unsupported kind.
fn kind_of(patterns: &[String], base: &Path) -> Result<DataKind> {
    let mixed = |kinds: &str| Err(RunError::Refused(format!("--data: {kinds} do not mix")));
    match patterns.iter().filter(|path| is_shard(path)).count() {
        0 => {}
        all if all == patterns.len() => return Ok(DataKind::Tokens),
        _ => return mixed("texts and token shards (.bin)"),
    }
    // A missing file is refused later, with its key.
    let files = data::files(base, patterns).unwrap_or_default();
    let mut kinds = Vec::new();
    for file in files {
        kinds.push(match FileContents::from_file(&file) {
            Ok(FileContents::Conversations) => DataKind::Chat,
            Ok(FileContents::Pairs) => DataKind::Preference,
            Ok(FileContents::Questions) => {
                let file = file.display();
                let text =
                    format!("--data: {file}: it has questions of multiple choice: --choices scores them");
                return Err(RunError::Refused(text));
            }
            // Other JSON is scored as text with a warning.
            Ok(FileContents::Text | FileContents::Texts | FileContents::Json) => DataKind::Text,
            Err(error @ Error::WrongFile { .. }) => {
                return Err(RunError::Refused(format!("--data: {error}")));
            }
            Err(_) => DataKind::Text,
        });
    }
    kinds.dedup();
    match kinds.as_slice() {
        [] => Ok(DataKind::Text),
        [kind] => Ok(*kind),
        _ => mixed("texts, conversations and pairs of answers"),
    }
}

pub(super) fn current_directory() -> Result<PathBuf> {
    std::env::current_dir().map_err(|source| RunError::File { path: PathBuf::from("."), source })
}
