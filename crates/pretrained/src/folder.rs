//! A model folder: its tensors, stored in one file or in several files with an index.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use nn::{HuggingFaceModel, LANGUAGE_PART};
use serde_json::Value;
use sha2::{Digest, Sha256};
use system::file_error::FileContext;
use system::input;
use system::numbers::hexadecimal;

use crate::error::{PretrainedError, Result};
use crate::tensor_file::{StoredTensor, add_tensors};

/// File name of the configuration in a model folder.
pub const CONFIG: &str = "config.json";
/// File name of the configuration in an adapter folder.
pub const ADAPTER_CONFIG: &str = "adapter_config.json";
/// File name of the adapters' tensors.
pub(crate) const ADAPTER_WEIGHTS: &str = "adapter_model.safetensors";
/// File name of the tensors if one file holds them all.
pub(crate) const WEIGHTS: &str = "model.safetensors";
/// Prefix of the language model's tensors in older folders with other parts.
const FORMER_LANGUAGE_PART: &str = "language_model.";
/// Name of the output head's weight, which folders with other parts store beside them.
const HEAD: &str = "lm_head.weight";
/// Maximum size of an index in bytes.
const MOST_INDEX: u64 = 100_000_000;
/// File name of the index if several files hold the tensors.
pub(crate) const INDEX: &str = "model.safetensors.index.json";

/// A folder whose file headers have been read.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
    tensors: BTreeMap<String, StoredTensor>,
}

impl Folder {
    /// Reads the headers of a folder's files.
    ///
    /// # Errors
    /// There are no such files, a header does not match its file's length, or the index does not match the
    /// files' tensors.
    pub fn open(path: &Path) -> Result<Self> {
        let mut tensors = BTreeMap::new();
        let whole = path.join(WEIGHTS);
        let index = path.join(INDEX);
        if whole.exists() {
            add_tensors(whole, &mut tensors)?;
        } else if index.exists() {
            let map = read_index(&index)?;
            let files: BTreeSet<_> = map.values().cloned().collect();
            files.into_iter().try_for_each(|file| add_tensors(path.join(file), &mut tensors))?;
            for (name, file) in &map {
                let there = tensors.get(name).is_some_and(|tensor| tensor.path() == path.join(file));
                if !there {
                    let what = format!("it places {name} in {file}, which does not hold it");
                    return Err(PretrainedError::refused(&index, what));
                }
            }
        } else {
            let what = format!("it has no {WEIGHTS} and no {INDEX}{}", other_format(path, WEIGHTS));
            return Err(PretrainedError::refused(path, what));
        }
        Ok(Folder { path: path.to_owned(), tensors })
    }

    /// Reads the header of an adapter folder's file.
    pub fn open_adapters(path: &Path) -> Result<Self> {
        let mut tensors = BTreeMap::new();
        let file = path.join(ADAPTER_WEIGHTS);
        if !file.exists() {
            let what = format!("it has no {ADAPTER_WEIGHTS}{}", other_format(path, ADAPTER_WEIGHTS));
            return Err(PretrainedError::refused(path, what));
        }
        add_tensors(file, &mut tensors)?;
        Ok(Folder { path: path.to_owned(), tensors })
    }

    /// Returns the folder's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns all tensors by name.
    #[must_use]
    pub fn tensors(&self) -> &BTreeMap<String, StoredTensor> {
        &self.tensors
    }

    /// Returns the tensor called `name`. The folder of a model without a head stores it without `prefix`, and
    /// folders with other parts than a language model with other prefixes.
    pub fn find(&self, name: &str, prefix: &str) -> Option<(&str, &StoredTensor)> {
        let short = || self.tensors.get_key_value(name.strip_prefix(prefix)?);
        let other = || names_in_parts(name).iter().find_map(|name| self.tensors.get_key_value(name));
        let entry = self.tensors.get_key_value(name).or_else(short).or_else(other);
        entry.map(|(name, tensor)| (name.as_str(), tensor))
    }

    /// Returns the tensors of other parts than the language model, such as a model of images; empty for a
    /// folder of a language model alone.
    #[must_use]
    pub fn other_parts(&self) -> BTreeMap<&str, &StoredTensor> {
        let has_part = self.tensors.keys().any(|name| is_language(name));
        let is_other = |name: &str| has_part && !is_language(name) && name != HEAD;
        let named = self.tensors.iter().map(|(name, tensor)| (name.as_str(), tensor));
        named.filter(|(name, _)| is_other(name)).collect()
    }

    /// Returns the tensors that `model` does not use but exports keep: tensors of other parts, and unused
    /// tensors of the language model.
    #[must_use]
    pub fn carried(&self, model: &HuggingFaceModel) -> BTreeMap<&str, &StoredTensor> {
        let mut carried = if model.is_part { self.other_parts() } else { BTreeMap::new() };
        let named = self.tensors.iter().map(|(name, tensor)| (name.as_str(), tensor));
        carried.extend(named.filter(|(name, _)| has_prefix(name, &model.unused)));
        carried.extend(self.unused_modules(model));
        let own = model.tensors.iter().filter_map(|tensor| self.find(&tensor.name, model.prefix));
        own.for_each(|(name, _)| {
            carried.remove(name);
        });
        carried
    }

    /// Returns the tensors of modules that predict later tokens and that `model` does not use.
    #[must_use]
    pub fn unused_modules(&self, model: &HuggingFaceModel) -> BTreeMap<&str, &StoredTensor> {
        let named = self.tensors.iter().map(|(name, tensor)| (name.as_str(), tensor));
        named.filter(|(name, _)| has_prefix(name, &model.unused_modules)).collect()
    }

    /// Returns whether the folder has a tensor of the module that predicts later tokens whose parameters have
    /// this prefix.
    #[must_use]
    pub fn has_module(&self, model: &HuggingFaceModel, prefix: &str) -> bool {
        let mut own = model.tensors.iter().filter(|tensor| tensor.parameter.starts_with(prefix));
        own.any(|tensor| self.find(&tensor.name, model.prefix).is_some())
    }

    /// Returns a hexadecimal SHA-256 over the names, types and shapes of all tensors and the first elements
    /// of each.
    pub(crate) fn fingerprint(&self) -> Result<String> {
        let mut digest = Sha256::new();
        for (name, tensor) in &self.tensors {
            let file = input::open(tensor.path()).context(tensor.path(), "open it")?;
            let elements = tensor.shape().iter().product::<usize>().min(64);
            let mut first = vec![0.0; elements];
            tensor.read(&file, 0..elements, &mut first)?;
            digest.update(format!("{name} {} {:?} ", tensor.dtype(), tensor.shape()));
            first.iter().for_each(|value| digest.update(value.to_le_bytes()));
        }
        Ok(hexadecimal(&digest.finalize()))
    }
}

/// Returns whether the name of a tensor has one of `prefixes`.
fn has_prefix(name: &str, prefixes: &[String]) -> bool {
    let name = with_newer_prefix(name);
    prefixes.iter().any(|prefix| name.starts_with(prefix.as_str()))
}

/// Returns the name of a language model's tensor with the newer prefix.
fn with_newer_prefix(name: &str) -> Cow<'_, str> {
    match name.strip_prefix(FORMER_LANGUAGE_PART).and_then(|name| name.strip_prefix("model.")) {
        Some(rest) => format!("{LANGUAGE_PART}{rest}").into(),
        None => name.into(),
    }
}

/// Returns the names of a language model's tensor in folders with other parts.
fn names_in_parts(name: &str) -> Vec<String> {
    let rest = name.strip_prefix(LANGUAGE_PART).or_else(|| name.strip_prefix("model."));
    match rest {
        Some(rest) => vec![format!("{LANGUAGE_PART}{rest}"), format!("{FORMER_LANGUAGE_PART}model.{rest}")],
        None => vec![format!("{FORMER_LANGUAGE_PART}{name}")],
    }
}

/// Returns whether a tensor belongs to the language model of a folder with other parts.
fn is_language(name: &str) -> bool {
    [LANGUAGE_PART, FORMER_LANGUAGE_PART].iter().any(|part| name.starts_with(part))
}

/// Returns text to append to an error about the missing file `wanted`: the weights in another format that the
/// folder has, and how to convert them. Empty if it has none.
fn other_format(path: &Path, wanted: &str) -> String {
    let names = || {
        let entries = std::fs::read_dir(path).into_iter().flatten().filter_map(|entry| entry.ok());
        entries.filter_map(|entry| entry.file_name().into_string().ok())
    };
    let has = |matches: &dyn Fn(&str) -> bool| names().filter(|name| matches(name)).min();
    let folder = path.display();
    if let Some(name) = has(&|name| name.starts_with("adapter_model.") && name.ends_with(".bin")) {
        return format!(
            "; it has {name}, which is of Python's pickle: `python -c \"import torch; from \
             safetensors.torch import save_file; save_file(torch.load('{folder}/{name}', \
             weights_only=True), '{folder}/{wanted}')\"` converts it"
        );
    }
    if let Some(name) = has(&|name| name.starts_with("pytorch_model") && name.ends_with(".bin")) {
        return format!(
            "; it has {name}, which is of Python's pickle: `python -c \"from transformers import \
             AutoModelForCausalLM as M; M.from_pretrained('{folder}', \
             torch_dtype='auto').save_pretrained('{folder}')\"` writes {wanted} beside it"
        );
    }
    match has(&|name| {
        [".bin", ".pth", ".pt", ".ckpt", ".h5", ".msgpack", ".gguf"].iter().any(|end| name.ends_with(end))
    }) {
        Some(name) => format!(
            "; weights as in {name} are not read: load them with the program that wrote them and save \
             safetensors, as `save_pretrained` of transformers does"
        ),
        None => String::new(),
    }
}

/// Reads an index. Returns the file name of each tensor.
///
/// # Errors
/// The text is not an index, or names a file outside the folder.
fn read_index(path: &Path) -> Result<BTreeMap<String, String>> {
    let refused = |what: String| PretrainedError::refused(path, what);
    let text = input::read_text(path, MOST_INDEX).context(path, "read it")?;
    let index: Value =
        serde_json::from_str(&text).map_err(|error| refused(format!("it is no JSON: {error}")))?;
    let Some(map) = index.get("weight_map").and_then(Value::as_object) else {
        return Err(refused("it has no weight_map".to_owned()));
    };
    let file = |(name, file): (&String, &Value)| {
        let is_own = |file: &&str| {
            let mut parts = Path::new(file).components();
            matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None))
        };
        match file.as_str().filter(is_own) {
            Some(file) => Ok((name.clone(), file.to_owned())),
            None => Err(refused(format!("{name}: {file} is no file of the folder"))),
        }
    };
    map.iter().map(file).collect()
}
