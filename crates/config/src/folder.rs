//! Reads the keys of `[model]` and `[lora]` that a Hugging Face folder implies.

use std::path::Path;

use keys::{Error, Implied, RawValues, Value};
use nn::{AdapterConfig, Families, Family, FolderConfig, HuggingFaceConfig};
use system::quoted::shortened;

use crate::choices::DataKind;
use crate::hub::how_to_download;
use crate::run_config::RunConfig;
use crate::sections::{Data, LoraSection, ModelSection, Train};

/// File name of the configuration in a model folder.
pub(crate) const CONFIG: &str = "config.json";
/// File name of the configuration in an adapter folder.
const ADAPTER_CONFIG: &str = "adapter_config.json";
/// Maximum size of a configuration file in bytes.
const MOST_CONFIG: u64 = 1 << 24;
/// The key for the number of tokens in a sequence.
pub(crate) const CONTEXT: &str = "model.context";
/// The dropout key of families that have dropout.
const DROPOUT: &str = "model.dropout";

/// Returns the model family and sizes that the folder of `model.from` implies. The folder is not read if all
/// of them are configured.
pub(crate) fn implied(raw: &RawValues, families: &Families) -> Result<Vec<Implied>, Error> {
    let from = raw.text(ModelSection::from)?;
    if from.is_empty() || is_complete(raw, families)? {
        return Ok(Vec::new());
    }
    let path = raw.directory_of(ModelSection::from).join(&from).join(CONFIG);
    let refused = |reason: String| {
        raw.conflict(&[ModelSection::from], format!("{}: {}: {reason}", ModelSection::from, path.display()))
    };
    let config = read(&path).map_err(|reason| refused(with_hub(reason, &path, &from)))?;
    let (family, translation) = family(&config, families).map_err(refused)?;
    if raw.is_set(ModelSection::kind) && raw.text(ModelSection::kind)? != family.name() {
        let kind = raw.text(ModelSection::kind)?;
        let reason = format!("it is a \"{}\", and model.kind = \"{kind}\"", family.name());
        return Err(refused(reason));
    }
    let mut values = (translation.keys)(&config).map_err(refused)?;
    let is_preference = raw.text(Data::kind)? == DataKind::Preference.name();
    for (key, value) in &mut values {
        // The answers of a reference have no dropout either.
        if is_preference && *key == DROPOUT {
            *value = 0.0.into();
        }
    }
    if !raw.flag(ModelSection::from_config)?
        && let Some(folder) = path.parent()
        && let Some(key) = key_of_own_head(folder, &translation, &values).map_err(refused)?
    {
        values.iter_mut().filter(|(other, _)| *other == key).for_each(|(_, value)| *value = false.into());
    }
    let kind = (ModelSection::kind, family.name().into());
    let file = path.to_string_lossy().into_owned();
    let implied = |(path, value): (&str, _)| Implied { path: path.to_owned(), value, file: file.clone() };
    Ok(std::iter::once(kind).chain(values).map(implied).collect())
}

/// Returns the key that ties the output head to the embedding, if the folder ties them but stores a head that
/// differs. As in transformers, both are then kept.
fn key_of_own_head(
    folder: &Path,
    translation: &HuggingFaceConfig,
    values: &[(&'static str, Value)],
) -> Result<Option<&'static str>, String> {
    let Some(tied) = translation.tied.filter(|tied| values.contains(&(tied.key, true.into()))) else {
        return Ok(None);
    };
    // Plans need no weights, and runs refuse a folder without them.
    match pretrained::has_own_head(folder, &tied) {
        Ok(own) => Ok(own.then_some(tied.key)),
        Err(_) => Ok(None),
    }
}

/// Returns messages about settings of the model's folder that the run does not follow: unknown settings, a
/// head that is not tied, and dropout in preference training.
pub(crate) fn notes(config: &RunConfig) -> Option<Vec<String>> {
    let folder = config.model.folder()?;
    let families = config.model.families();
    let path = folder.join(CONFIG);
    let file = read(&path).ok()?;
    let (_, translation) = family(&file, families).ok()?;
    let values = (translation.keys)(&file).ok()?;
    let file_name = path.display();
    let mut notes = Vec::new();
    let ignored = (translation.ignored)(&file);
    if !ignored.is_empty() {
        let names = ignored.join(", ");
        let names = shortened(&names);
        notes.push(format!("{file_name}: settings that are unknown here are ignored: {names}"));
    }
    if let Some(tied) = translation.tied
        && values.contains(&(tied.key, true.into()))
        && config.is_of_folder(tied.key)
        && config.model.value(tied.key) == Some(false.into())
    {
        notes.push(format!(
            "{}: {} differs from {}, and both are kept, as in transformers, although tie_word_embeddings = true",
            folder.display(),
            tied.head,
            tied.embedding
        ));
    }
    notes.extend(modules_note(config, folder));
    // Plans need no weights.
    let carried = pretrained::Folder::open(folder).map(|folder| folder.other_parts().len()).unwrap_or(0);
    if carried > 0 {
        notes.push(format!(
            "{}: the language model is trained; {carried} tensors of other parts and all other files go with \
             an export unchanged",
            folder.display()
        ));
    }
    let dropout = values.iter().find(|(key, _)| *key == DROPOUT).map(|(_, value)| value.clone());
    if let Some(Value::Float(dropout)) = dropout
        && dropout > 0.0
        && config.data.kind == DataKind::Preference
        && config.is_of_folder(DROPOUT)
    {
        notes.push(without_dropout(&path, DROPOUT, dropout));
    }
    Some(notes)
}

/// Returns a message about the modules that predict later tokens, if the run or the folder has some.
fn modules_note(config: &RunConfig, path: &Path) -> Option<String> {
    let model = config.hugging_face()?;
    // Plans need no weights.
    let folder = pretrained::Folder::open(path).ok()?;
    let path = path.display();
    let modules = model.modules.len();
    let own = model.modules.iter().filter(|prefix| folder.has_module(&model, prefix)).count();
    let unused = folder.unused_modules(&model).len();
    if modules > 0 {
        let drawn = if own < modules { ", and the others are drawn" } else { "" };
        return Some(format!("{path}: it has {own} of {modules} modules that predict later tokens{drawn}"));
    }
    (unused > 0).then(|| {
        format!(
            "{path}: {unused} tensors of modules that predict later tokens are not trained and go with an \
             export unchanged; {} trains them",
            Train::predict_tokens
        )
    })
}

/// Returns a message if preference training ignores the dropout configured in the folder of `lora.from`.
pub(crate) fn adapters_note(config: &RunConfig) -> Option<String> {
    let path = config.lora.from.as_ref()?.join(ADAPTER_CONFIG);
    if config.data.kind != DataKind::Preference || !config.is_of_folder(LoraSection::dropout) {
        return None;
    }
    let text = system::input::read_text(&path, MOST_CONFIG).ok()?;
    let dropout = AdapterConfig::parse(&text).ok()?.dropout;
    (dropout > 0.0 && config.lora.dropout == 0.0)
        .then(|| without_dropout(&path, LoraSection::dropout, dropout))
}

fn without_dropout(file: &Path, key: &str, dropout: f64) -> String {
    format!(
        "preferences are trained without the dropout of {}, as in TRL: {key} = {dropout} keeps it",
        file.display()
    )
}

/// Returns the context length in tokens that the folder's `config.json` states; `None` if it states none.
pub(crate) fn context_of(folder: &Path, families: &Families) -> Option<u64> {
    let config = read(&folder.join(CONFIG)).ok()?;
    let (_, translation) = family(&config, families).ok()?;
    let keys = (translation.keys)(&config).ok()?;
    keys.into_iter().find_map(|(key, value)| match value {
        Value::Integer(count) if key == CONTEXT => u64::try_from(count).ok(),
        _ => None,
    })
}

/// Returns the keys of `[lora]` that the folder of `lora.from` implies.
pub(crate) fn adapters_implied(raw: &RawValues) -> Result<Vec<Implied>, Error> {
    let from = raw.text(LoraSection::from)?;
    let keys = [LoraSection::rank, LoraSection::alpha, LoraSection::dropout, LoraSection::targets];
    if from.is_empty() || keys.iter().all(|key| raw.is_set(key)) {
        return Ok(Vec::new());
    }
    let path = raw.directory_of(LoraSection::from).join(&from).join(ADAPTER_CONFIG);
    let refused = |reason: String| {
        raw.conflict(&[LoraSection::from], format!("{}: {}: {reason}", LoraSection::from, path.display()))
    };
    let text = system::input::read_text(&path, MOST_CONFIG)
        .map_err(|error| refused(with_hub(error.to_string(), &path, &from)))?;
    let adapters = AdapterConfig::parse(&text).map_err(refused)?;
    // Adapters are a part of the policy, whose reference has no dropout.
    let is_preference = raw.text(Data::kind)? == DataKind::Preference.name();
    let dropout = if is_preference { 0.0 } else { adapters.dropout };
    let targets = adapters.targets.as_slice();
    let ranks = adapters.rank_pattern.as_slice();
    let values: [Value; 4] = [adapters.r.into(), adapters.alpha.into(), dropout.into(), targets.into()];
    let mut values: Vec<(_, Value)> = keys.into_iter().zip(values).collect();
    values.push((LoraSection::rank_pattern, ranks.into()));
    values.push((LoraSection::train_also, adapters.train_also.as_slice().into()));
    // An alpha that is written goes with the factor that is written or the default.
    if !raw.is_set(LoraSection::alpha) {
        values.push((LoraSection::scaling, adapters.scaling.name().into()));
        values.push((LoraSection::alpha_pattern, adapters.alpha_pattern.as_slice().into()));
    }
    let file = path.to_string_lossy().into_owned();
    let implied = |(path, value): (&str, _)| Implied { path: path.to_owned(), value, file: file.clone() };
    Ok(values.into_iter().map(implied).collect())
}

/// Returns `reason`, why the file at `path` cannot be read. If `name` may be a model on Hugging Face's hub,
/// appends how to download it.
fn with_hub(reason: String, path: &Path, name: &str) -> String {
    match how_to_download(name).filter(|_| !path.exists()) {
        Some(advice) => format!("{reason}; {advice}"),
        None => reason,
    }
}

fn is_complete(raw: &RawValues, families: &Families) -> Result<bool, Error> {
    if !raw.is_set(ModelSection::kind) {
        return Ok(false);
    }
    let family = families.find(&raw.text(ModelSection::kind)?);
    Ok(family.is_some_and(|family| family.keys().iter().all(|key| raw.is_set(key.path))))
}

fn read(path: &Path) -> Result<FolderConfig, String> {
    let text = system::input::read_text(path, MOST_CONFIG).map_err(|error| error.to_string())?;
    FolderConfig::parse(&text)
}

/// Returns the family of the folder's model, and how it translates the folder's configuration.
fn family<'a>(
    config: &FolderConfig,
    families: &'a Families,
) -> Result<(&'a Family, nn::HuggingFaceConfig), String> {
    let model_type = config.model_type()?;
    let mut all = families.list().iter().filter_map(|family| Some((family, family.hugging_face()?)));
    all.clone().find(|(_, translation)| translation.model_types.contains(&model_type)).ok_or_else(|| {
        let types = all.by_ref().flat_map(|(_, translation)| translation.model_types);
        let built: Vec<_> = types.copied().collect();
        let names: Vec<_> = built.iter().map(|name| format!("\"{name}\"")).collect();
        let near = nn::nearest_family(model_type, &built);
        let model_type = shortened(model_type);
        format!("model_type = \"{model_type}\" is not supported{near}; supported: {}", names.join(", "))
    })
}
