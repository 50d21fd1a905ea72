//! Exports a trained model as a Hugging Face folder.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use checkpoint::{Share, Target};
use config::RunConfig;
use device::DType;
use nn::{Examples, FolderConfig, FolderTensor, HuggingFaceModel};
use pretrained::{CONFIG, Export, Folder, FolderKind, PretrainedError, in_form_of, write_folder};
use serde_json::Value;
use tensor::Shape;
use worker::{Decoded, Weights, WorkerError};

use crate::beside::{Beside, pretty, takes_tokens};
use crate::location::{Location, NO_DATA, folder_config};
use crate::merge::Adapters;
use crate::trained::Trained;
use run::weights;
use run::{Result, RunError};

/// Maximum size of a configuration in bytes.
const MOST_CONFIG: u64 = 1 << 24;

/// Names of the dtype key in a folder's configuration, by version of transformers.
const TYPE_KEYS: [&str; 2] = ["dtype", "torch_dtype"];

/// The settings of the language model in a folder with other parts.
const LANGUAGE: &str = "text_config";

/// Dtypes that may be written.
const FLOATS: [DType; 3] = [DType::F32, DType::Bf16, DType::F16];

/// Keys of a folder's configuration that a run may increase: positions and tokens.
const GROWING: [&str; 4] =
    ["max_position_embeddings", "model_max_length", "vocab_size", "vocab_size_per_layer_input"];

/// Default maximum bytes of tensors in one file, as in transformers before version 5.
const MOST_SHARD: u64 = 5_000_000_000;

/// Keys that affect neither weights nor outputs, so that a folder's configuration may differ in them.
const OF_TRAINING: &[&str] = &["model.dropout", "model.loss_pieces", "model.hugging_face"];

/// Options of an export.
#[derive(Clone, Debug, Default)]
pub struct ExportOptions {
    /// A run, a checkpoint, a Hugging Face folder, or a folder of adapters.
    pub model: PathBuf,
    /// Folder of the adapters' base model; `None` for the folder named by the adapters.
    pub base: Option<PathBuf>,
    /// Step of a run's checkpoint; `None` for the newest.
    pub step: Option<u64>,
    /// Whether to use the average of the weights (`train.ema`) instead of the weights.
    pub average: bool,
    /// Folder to write; it must not exist.
    pub output: PathBuf,
    /// Whether to leave out modules that predict later tokens.
    pub without_mtp: bool,
    /// Whether to merge adapters into the model; otherwise they are written alone.
    pub merge: bool,
    /// Dtype of the written tensors. `None` uses the folder's dtype, or the one in the configuration of the
    /// folder that a run came from, else f32.
    pub dtype: Option<DType>,
    /// Maximum bytes of tensors in one file; `None` for 5 GB.
    pub most_bytes: Option<u64>,
}

/// Writes a model as a Hugging Face folder, one tensor at a time. If the model came from such a folder, its
/// configuration and tokenizer are included.
///
/// # Errors
/// There is no model, its family has no Hugging Face format, or the output exists or cannot be written.
pub fn export(options: &ExportOptions) -> Result<()> {
    let ExportOptions { step, base, average, .. } = options;
    let base = base.as_deref();
    let location = Location { path: &options.model, step: *step, base, average: *average };
    let trained = Trained::find(location, &[], Share::ALL)?;
    let beside = Beside::from_model(&trained)?;
    let stored = Stored::from_model(&trained);
    let Trained { config, weights, .. } = trained;
    let described = if options.without_mtp { config.model.hugging_face() } else { config.hugging_face() };
    let Some(mut model) = described else {
        let kind = config.model.kind();
        let why = match config.model.width_scaling().is_none() {
            true => String::new(),
            false => ", whose scores model.base_width scales".to_owned(),
        };
        let path = options.model.display();
        let text = format!("{path}: transformers have no model like this model.kind = \"{kind}\"{why}");
        return Err(RunError::Refused(text));
    };
    if let Some(folder) = &stored.folder {
        model = in_form_of(folder, model);
    }
    stored.add_copies(&mut model);
    let whole = weights::whole(&config)?;
    let parameters = whole.parameters();
    let weights = Decoded::new(weights, weights::whole_in_shards(&config)?.parameters());
    let buffers = whole.buffers().iter().map(|buffer| (buffer.name(), buffer.tensor().shape()));
    let shapes = parameters.list().iter().map(|p| (p.name.as_str(), p.shape()));
    let shapes: BTreeMap<_, _> = shapes.chain(buffers).collect();
    let shape = |name: &str| shapes.get(name).copied();
    let adapters = match config.tuning.lora() {
        Some(lora) if options.merge => {
            Some(Adapters { model: &model, tensors: parameters.adapters().tensors(), lora, shape: &shape })
        }
        _ => None,
    };
    if options.merge && adapters.is_none() {
        let text = format!("--merge: {} has no adapters", options.model.display());
        return Err(RunError::Refused(text));
    }
    let folder = weights::adapters(&config, parameters.adapters().tensors()).filter(|_| !options.merge);
    let export = match folder {
        Some(model) => {
            let Beside { files, contents } = beside.without_generation();
            Export {
                kind: FolderKind::Adapters,
                model,
                shape: &shape,
                dtype: options.dtype.unwrap_or(DType::F32),
                other_dtypes: BTreeMap::new(),
                carried: Vec::new(),
                config: None,
                files,
                contents,
                most_bytes: u64::MAX,
            }
        }
        None => {
            let chosen = (options.dtype, &stored, options.without_mtp);
            model_export(&config, model.clone(), beside, chosen, options.most_bytes, &shape)
        }
    };
    let load = |targets: &mut dyn Iterator<Item = Target>| {
        let mut targets = targets;
        let each = |target| load(target, &weights, adapters.as_ref());
        let loaded = (&mut targets).try_for_each(each);
        loaded.map_err(|error| as_pretrained(error, weights.path()))
    };
    Ok(write_folder(&options.output, export, &load)?)
}

/// Reads a tensor and adds its adapter's term.
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

/// Prepares the folder of a whole model, with the tokenizer and the configuration of its original folder.
fn model_export<'a>(
    config: &RunConfig,
    mut model: HuggingFaceModel,
    beside: Beside,
    (chosen, stored, without_mtp): (Option<DType>, &Stored, bool),
    most_bytes: Option<u64>,
    shape: &'a dyn Fn(&str) -> Option<Shape>,
) -> Export<'a> {
    let tokens = text_tokens(config);
    for (key, token) in &tokens {
        model.config.insert((*key).to_owned(), token.clone());
    }
    let origin = Origin::from_config(config);
    let origin = origin.map(|origin| origin.with_sizes_of(&model).with_modules_of(&model, without_mtp));
    let Beside { mut files, contents } = beside.with_text_tokens(&tokens);
    let mut carried = Vec::new();
    match (&stored.folder, &origin) {
        (Some(folder), Some(_)) => {
            let modules = folder.unused_modules(&model);
            report_modules(without_mtp, &model, modules.len());
            let kept = folder.carried(&model).into_iter();
            let kept = kept.filter(|(name, _)| !(without_mtp && modules.contains_key(name)));
            carried = kept.map(|(name, tensor)| (name.to_owned(), tensor.clone())).collect();
            if model.is_part {
                for tensor in &mut model.tensors {
                    if let Some((name, _)) = folder.find(&tensor.name, model.prefix) {
                        name.clone_into(&mut tensor.name);
                    }
                }
                add_other_files(folder.path(), &mut files, &contents);
            }
        }
        _ => model = model.alone(),
    }
    let named = || origin.as_ref().and_then(Origin::dtype);
    // A folder may store other dtypes than its configuration names; they are kept.
    let is_as_stored = chosen.is_none() && !stored.dtypes.is_empty();
    let mut dtypes = stored.dtypes.values();
    let common = dtypes.next().filter(|first| dtypes.all(|dtype| dtype == *first));
    let dtype = chosen.or(common.copied()).or_else(named).unwrap_or(DType::F32);
    let other_dtypes = match is_as_stored {
        true => stored.dtypes.clone().into_iter().filter(|(_, own)| *own != dtype).collect(),
        false => BTreeMap::new(),
    };
    Export {
        kind: FolderKind::Model,
        model,
        shape,
        dtype,
        other_dtypes,
        carried,
        config: origin.as_ref().map(|origin| match is_as_stored {
            true => origin.text.clone(),
            false => origin.config_text(dtype),
        }),
        files,
        contents,
        most_bytes: most_bytes.unwrap_or(MOST_SHARD),
    }
}

/// Logs what becomes of the modules that predict later tokens; `carried` is the number of tensors of modules
/// that are not trained.
fn report_modules(without_mtp: bool, model: &HuggingFaceModel, carried: usize) {
    let trained = model.modules.len();
    if without_mtp {
        tracing::info!("modules that predict later tokens are left out");
    } else if trained > 0 {
        tracing::info!("{trained} trained modules that predict later tokens are written");
    } else if carried > 0 {
        tracing::info!("{carried} tensors of modules that predict later tokens are kept unchanged");
    }
}

/// Adds the files of the folder at `path` that an export would lack: all but weights and configurations.
fn add_other_files(path: &Path, files: &mut Vec<PathBuf>, contents: &[(&'static str, Vec<u8>)]) {
    const WEIGHTS: [&str; 6] = [".safetensors", ".index.json", ".bin", ".pt", ".pth", ".gguf"];
    let entries = std::fs::read_dir(path).into_iter().flatten().filter_map(|entry| entry.ok());
    let mut others: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(|path| path.is_file()).collect();
    others.sort();
    others.retain(|file| {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let is_weights = WEIGHTS.iter().any(|end| name.ends_with(end));
        let is_written = name == CONFIG || contents.iter().any(|(own, _)| *own == name);
        !is_weights && !is_written && !files.iter().any(|own| own.file_name() == file.file_name())
    });
    files.extend(others);
}

/// Returns the tokens with which a model's texts begin and end, by key; empty for models without tokens.
fn text_tokens(config: &RunConfig) -> Vec<(&'static str, Value)> {
    if !takes_tokens(config) {
        return Vec::new();
    }
    let ends = match *config.text_ends(&config.tokenizer) {
        [] => Value::Null,
        [end] => end.into(),
        ref ends => ends.into(),
    };
    vec![("bos_token_id", config.text_start(&config.tokenizer).into()), ("eos_token_id", ends)]
}

/// Tensors in the exported folder, or in the folder that a run came from.
struct Stored {
    folder: Option<Folder>,
    /// Floating-point dtypes of the model's own tensors by name, if a folder is exported unchanged.
    dtypes: BTreeMap<String, DType>,
}

impl Stored {
    fn from_model(trained: &Trained) -> Self {
        let folder = trained.folders().into_iter().find_map(|folder| Folder::open(folder).ok());
        let Some(folder) = folder else { return Stored { folder: None, dtypes: BTreeMap::new() } };
        let is_itself = !trained.is_run() && trained.config.lora.from.is_none();
        let others = folder.other_parts();
        let own = folder.tensors().iter().filter(|(name, _)| !others.contains_key(name.as_str()));
        let dtypes = own.map(|(name, tensor)| (name.clone(), tensor.dtype()));
        let dtypes = dtypes.filter(|(_, dtype)| is_itself && dtype.is_float()).collect();
        Stored { folder: Some(folder), dtypes }
    }

    /// Adds tensors that the folder stores as duplicates.
    fn add_copies(&self, model: &mut HuggingFaceModel) {
        let has = |name: &str| self.folder.as_ref().is_some_and(|folder| folder.find(name, "").is_some());
        for (name, original_name) in model.copies.iter().filter(|(name, _)| has(name)) {
            let original = model.tensors.iter().find(|tensor| tensor.name == *original_name);
            let copy = original.map(|original| FolderTensor { name: name.clone(), ..original.clone() });
            model.tensors.extend(copy);
        }
    }
}

/// The folder that a model came from, if it still exists and still describes the model.
struct Origin {
    text: String,
    config: serde_json::Map<String, Value>,
}

impl Origin {
    fn from_config(config: &RunConfig) -> Option<Self> {
        let folder = config.model.folder()?;
        let mut sizes = config.model.with_context(config.model.examples().units());
        if let (Examples::Tokens { vocabulary, .. }, true) =
            (config.model.examples(), config.model.resizes_vocabulary())
        {
            sizes.push(format!("model.vocabulary={vocabulary}"));
        }
        let there = folder_config(folder, NO_DATA, &sizes).ok()?;
        let values = |config: &RunConfig| {
            let pairs = config.model.pairs().filter(|(key, _)| !OF_TRAINING.contains(&key.path));
            pairs.map(|(_, value)| value).collect::<Vec<_>>()
        };
        if there.model.kind() != config.model.kind() || values(&there) != values(config) {
            return None;
        }
        let text = system::input::read_text(&folder.join(CONFIG), MOST_CONFIG).ok()?;
        let config = FolderConfig::parse(&text).ok()?.into_settings();
        Some(Origin { text, config })
    }

    /// Returns the configuration with more positions, if the model was trained on longer sequences, and with
    /// added tokens.
    fn with_sizes_of(mut self, model: &HuggingFaceModel) -> Self {
        for key in GROWING {
            let size = |config: &serde_json::Map<String, Value>| config.get(key)?.as_u64();
            let own = match self.config.get(LANGUAGE).filter(|_| model.is_part).and_then(Value::as_object) {
                Some(config) => size(config),
                None => size(&self.config),
            };
            if let (Some(there), Some(here)) = (own, size(&model.config))
                && here > there
            {
                match self.config.get_mut(LANGUAGE).filter(|_| model.is_part).and_then(Value::as_object_mut) {
                    Some(config) => config.insert(key.to_owned(), here.into()),
                    None => self.config.insert(key.to_owned(), here.into()),
                };
                self.text = pretty(&self.config);
            }
        }
        self
    }

    /// Returns the configuration with the number of modules that predict later tokens, unless modules that
    /// are not trained are kept.
    fn with_modules_of(mut self, model: &HuggingFaceModel, without_mtp: bool) -> Self {
        let count = model.modules.len();
        if count == 0 && !without_mtp {
            return self;
        }
        let is_inner = model.is_part && self.config.get(LANGUAGE).is_some_and(Value::is_object);
        let config = match is_inner {
            true => self.config.get_mut(LANGUAGE).and_then(Value::as_object_mut),
            false => Some(&mut self.config),
        };
        let Some(config) = config else { return self };
        let mut changed = false;
        for name in model.module_counts {
            let is_counted = config.contains_key(*name) || model.config.contains_key(*name) && count > 0;
            if is_counted && config.get(*name) != Some(&count.into()) {
                config.insert((*name).to_owned(), count.into());
                changed = true;
            }
        }
        if changed {
            self.text = pretty(&self.config);
        }
        self
    }

    fn dtype(&self) -> Option<DType> {
        let language = self.config.get(LANGUAGE).and_then(Value::as_object);
        let named = |config: &serde_json::Map<String, Value>| {
            TYPE_KEYS.iter().find_map(|key| config.get(*key)?.as_str()).map(str::to_owned)
        };
        let name = named(&self.config).or_else(|| named(language?))?;
        FLOATS.into_iter().find(|dtype| type_name(*dtype) == name)
    }

    /// Returns the configuration's text, unchanged if the dtype is the same.
    fn config_text(&self, dtype: DType) -> String {
        if self.dtype() == Some(dtype) {
            return self.text.clone();
        }
        let mut config = self.config.clone();
        let set = |config: &mut serde_json::Map<String, Value>| {
            for key in TYPE_KEYS {
                if let Some(value) = config.get_mut(key) {
                    *value = type_name(dtype).into();
                }
            }
        };
        set(&mut config);
        config.get_mut(LANGUAGE).and_then(Value::as_object_mut).into_iter().for_each(set);
        pretty(&config)
    }
}

fn type_name(dtype: DType) -> &'static str {
    match dtype {
        DType::Bf16 => "bfloat16",
        DType::F16 => "float16",
        _ => "float32",
    }
}
