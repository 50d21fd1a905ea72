//! Writing a trained model as a folder of Hugging Face.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use checkpoint::Target;
use config::RunConfig;
use data::Tokenizer;
use device::DType;
use nn::{Examples, HuggingFaceModel};
use pretrained::{CONFIG, Export, FolderKind, PretrainedError, write_folder};
use serde_json::Value;
use tensor::Shape;
use worker::{Weights, WorkerError};

use crate::merge::Adapters;
use crate::trained::{NO_DATA, Trained, files_in, folder_config};
use run::weights;
use run::{Result, RunError};

/// Files beside the weights that go with a model: its tokenizer, and how it generates text.
const BESIDE: &[&str] = &[
    "added_tokens.json",
    "chat_template.jinja",
    GENERATION,
    "merges.txt",
    "special_tokens_map.json",
    TOKENIZER,
    "tokenizer.model",
    TOKENIZER_CONFIG,
    "vocab.json",
];

/// The most bytes that a configuration may have.
const MOST_CONFIG: u64 = 1 << 24;

/// Names of the element type in a folder's configuration, by version of transformers.
const TYPE_KEYS: [&str; 2] = ["dtype", "torch_dtype"];

/// The most bytes of tensors in one file, the default of transformers before version 5.
const MOST_SHARD: u64 = 5_000_000_000;

/// The files of the tokenizer, and that of settings for generating text.
const TOKENIZER: &str = "tokenizer.json";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
const GENERATION: &str = "generation_config.json";

/// Keys that affect neither weights nor outputs, and whose values a folder's configuration may differ in.
const OF_TRAINING: &[&str] = &["model.dropout", "model.loss_pieces"];

/// Options of an export.
#[derive(Clone, Debug, Default)]
pub struct ExportOptions {
    /// A run, a checkpoint or a folder of Hugging Face.
    pub model: PathBuf,
    /// The step of a run's checkpoint; `None`: the newest.
    pub step: Option<u64>,
    /// The folder to write, which must not exist.
    pub output: PathBuf,
    /// Whether adapters are merged into the model; otherwise they are written separately.
    pub merge: bool,
    /// The type of the written elements; `None`: that of the folder which the model came from, or else f32.
    pub dtype: Option<DType>,
    /// The most bytes of tensors in one file; `None`: 5 GB.
    pub most_bytes: Option<u64>,
}

/// Writes a model as a folder of Hugging Face, tensor by tensor. If the model came from such a folder, its
/// configuration and tokenizer go with it.
///
/// # Errors
/// No model there; a family that such folders do not have; an output that exists or cannot be written.
pub fn export(options: &ExportOptions) -> Result<()> {
    let Trained { config, weights, .. } = Trained::find(&options.model, options.step, &[])?;
    let Some(model) = config.model.hugging_face() else {
        let text = format!(
            "{}: transformers have no model like this model.kind = \"{}\"",
            options.model.display(),
            config.model.kind()
        );
        return Err(RunError::Refused(text));
    };
    let whole = weights::whole(&config)?;
    let parameters = whole.parameters();
    let buffers = whole.buffers().iter().map(|buffer| (buffer.name(), buffer.tensor().shape()));
    let shapes = parameters.list().iter().map(|p| (p.name.as_str(), p.weight.shape()));
    let shapes: BTreeMap<_, _> = shapes.chain(buffers).collect();
    let shape = |name: &str| shapes.get(name).copied();
    let adapters = match config.tuning.lora() {
        Some(lora) if options.merge => Some(Adapters {
            model: &model,
            tensors: parameters.adapters().tensors(),
            scale: lora.scale(),
            shape: &shape,
        }),
        _ => None,
    };
    if options.merge && adapters.is_none() {
        let text = format!("--merge: {} has no adapters", options.model.display());
        return Err(RunError::Refused(text));
    }
    let folder = weights::adapters(&config, parameters.adapters().tensors()).filter(|_| !options.merge);
    let export = match folder {
        Some(model) => Export {
            kind: FolderKind::Adapters,
            model,
            shape: &shape,
            dtype: options.dtype.unwrap_or(DType::F32),
            config: None,
            files: Vec::new(),
            contents: Vec::new(),
            most_bytes: u64::MAX,
        },
        None => model_export(&config, model.clone(), options, &shape),
    };
    let load = |targets: &mut dyn Iterator<Item = Target>| {
        let mut targets = targets;
        let each = |target| load(target, &*weights, adapters.as_ref());
        let loaded = (&mut targets).try_for_each(each);
        loaded.map_err(|error| as_pretrained(error, weights.path()))
    };
    Ok(write_folder(&options.output, export, &load)?)
}

/// Returns settings for generating text with transformers, which ends at the token between documents.
fn generation_config(separator: u32) -> String {
    format!("{{\n  \"bos_token_id\": {separator},\n  \"eos_token_id\": {separator}\n}}\n")
}

/// Reads a target, plus the term of its adapter.
fn load(target: Target, weights: &dyn Weights, adapters: Option<&Adapters<'_>>) -> Result<()> {
    weights.load(&mut std::iter::once(target.clone()))?;
    adapters.map_or(Ok(()), |adapters| adapters.add_to(&target, weights))
}

fn as_pretrained(error: RunError, path: &Path) -> PretrainedError {
    match error {
        RunError::Worker(WorkerError::Pretrained(error)) => error,
        RunError::Worker(WorkerError::Checkpoint(error)) => error.into(),
        RunError::Worker(WorkerError::Tensor(error)) => error.into(),
        other => PretrainedError::Refused { path: path.to_owned(), what: other.to_string() },
    }
}

/// A whole model as a folder, with the configuration of the one that it came from and the tokenizer.
fn model_export<'a>(
    config: &RunConfig,
    mut model: HuggingFaceModel,
    options: &ExportOptions,
    shape: &'a dyn Fn(&str) -> Option<Shape>,
) -> Export<'a> {
    let separator = config.separator().filter(|_| takes_tokens(config));
    for key in ["bos_token_id", "eos_token_id"] {
        if takes_tokens(config) {
            model.config.insert(key.to_owned(), separator.into());
        }
    }
    let origin = Origin::of(config);
    let mut files = config.model.folder().map_or_else(Vec::new, |folder| files_in(folder, BESIDE));
    let mut contents = Vec::new();
    if let Some(template) = &config.data.chat_template {
        files.retain(|file| file.file_name() != template.file_name());
        files.push(template.clone());
    }
    let has_config = files.iter().any(|file| file.ends_with(TOKENIZER_CONFIG));
    for (name, text) in tokenizer_files(config, has_config) {
        files.retain(|file| !file.ends_with(name));
        contents.push((name, text));
    }
    if let Some(token) = separator.filter(|_| !files.iter().any(|file| file.ends_with(GENERATION))) {
        contents.push((GENERATION, generation_config(token).into_bytes()));
    }
    let dtype = options.dtype.or(origin.as_ref().and_then(Origin::dtype)).unwrap_or(DType::F32);
    Export {
        kind: FolderKind::Model,
        model,
        shape,
        dtype,
        config: origin.as_ref().map(|origin| origin.config_text(dtype)),
        files,
        contents,
        most_bytes: options.most_bytes.unwrap_or(MOST_SHARD),
    }
}

/// Returns the files of a run's tokenizer; none of an unknown one, and none of bytes, the default, for a
/// model that came from a folder.
fn tokenizer_files(config: &RunConfig, has_config: bool) -> Vec<(&'static str, Vec<u8>)> {
    let tokenizer = &config.tokenizer;
    let beside = match tokenizer {
        Tokenizer::File(file) => file.beside().to_vec(),
        Tokenizer::Bytes if config.model.folder().is_some() => return Vec::new(),
        _ if !takes_tokens(config) => return Vec::new(),
        _ => Vec::new(),
    };
    let Some(json) = tokenizer.json() else { return Vec::new() };
    let mut files = vec![(TOKENIZER, json)];
    if !has_config && !beside.iter().any(|(name, _)| *name == TOKENIZER_CONFIG) {
        // Without it, transformers would take the class of tokenizers that usually goes with the model.
        let mut written = serde_json::Map::new();
        written.insert("tokenizer_class".to_owned(), "PreTrainedTokenizerFast".into());
        written.insert("clean_up_tokenization_spaces".to_owned(), false.into());
        let text = config.separator().and_then(|token| tokenizer.spelling(token));
        for key in ["bos_token", "eos_token"] {
            written.extend(text.iter().map(|text| (key.to_owned(), text.clone().into())));
        }
        // A map of JSON values has a text.
        let text = serde_json::to_string_pretty(&Value::Object(written)).unwrap_or_default() + "\n";
        files.push((TOKENIZER_CONFIG, text.into_bytes()));
    }
    files.extend(beside);
    files
}

/// Returns whether a model's examples are tokens.
fn takes_tokens(config: &RunConfig) -> bool {
    matches!(config.model.examples(), Examples::Tokens { .. })
}

/// The folder that a model came from, if it is still there and still describes the model.
struct Origin {
    text: String,
    config: serde_json::Map<String, Value>,
}

impl Origin {
    fn of(config: &RunConfig) -> Option<Self> {
        let folder = config.model.folder()?;
        let context = config.model.with_context(config.model.examples().units());
        let there = folder_config(folder, NO_DATA, &context).ok()?;
        let values = |of: &RunConfig| {
            let pairs = of.model.pairs().filter(|(key, _)| !OF_TRAINING.contains(&key.path));
            pairs.map(|(_, value)| value).collect::<Vec<_>>()
        };
        if there.model.kind() != config.model.kind() || values(&there) != values(config) {
            return None;
        }
        let text = system::input::read_text(&folder.join(CONFIG), MOST_CONFIG).ok()?;
        let config = serde_json::from_str(&text).ok()?;
        Some(Origin { text, config })
    }

    fn dtype(&self) -> Option<DType> {
        let name = TYPE_KEYS.iter().find_map(|key| self.config.get(*key)?.as_str())?;
        [DType::F32, DType::Bf16, DType::F16].into_iter().find(|dtype| type_name(*dtype) == name)
    }

    /// The configuration, as it is where the type is the same.
    fn config_text(&self, dtype: DType) -> String {
        if self.dtype() == Some(dtype) {
            return self.text.clone();
        }
        let mut config = self.config.clone();
        for key in TYPE_KEYS {
            if let Some(value) = config.get_mut(key) {
                *value = type_name(dtype).into();
            }
        }
        // A map of JSON values has a text.
        serde_json::to_string_pretty(&Value::Object(config)).unwrap_or_default() + "\n"
    }
}

fn type_name(dtype: DType) -> &'static str {
    match dtype {
        DType::Bf16 => "bfloat16",
        DType::F16 => "float16",
        _ => "float32",
    }
}
