//! A folder: the tensors of one file, or of the files that its index names.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use serde_json::Value;
use sha2::{Digest, Sha256};
use system::file_error::FileContext;
use system::input;
use system::numbers::hexadecimal;

use crate::error::{PretrainedError, Result};
use crate::tensor_file::{StoredTensor, add_tensors};

/// The name of the configuration in a folder.
pub const CONFIG: &str = "config.json";
/// The name of the configuration in a folder of adapters.
pub const ADAPTER_CONFIG: &str = "adapter_config.json";
/// The file of all matrices of adapters.
pub(crate) const ADAPTER_WEIGHTS: &str = "adapter_model.safetensors";
/// The file of all tensors.
pub(crate) const WEIGHTS: &str = "model.safetensors";
/// The most bytes of an index.
const MOST_INDEX: u64 = 100_000_000;
/// The index of several files of tensors.
pub(crate) const INDEX: &str = "model.safetensors.index.json";

/// A folder whose headers have been read.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
    tensors: BTreeMap<String, StoredTensor>,
}

impl Folder {
    /// Reads the headers of a folder's files.
    ///
    /// # Errors
    /// No such files; headers that do not describe their files byte for byte; an index that names other
    /// tensors than the files contain.
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

    /// Reads the header of the file of a folder of adapters.
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

    /// The folder's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All tensors by name.
    #[must_use]
    pub fn tensors(&self) -> &BTreeMap<String, StoredTensor> {
        &self.tensors
    }

    /// Returns the tensor called `name`, without `prefix` in the folder of a model without its head.
    pub(crate) fn find(&self, name: &str, prefix: &str) -> Option<(&str, &StoredTensor)> {
        let short = || self.tensors.get_key_value(name.strip_prefix(prefix)?);
        let entry = self.tensors.get_key_value(name).or_else(short);
        entry.map(|(name, tensor)| (name.as_str(), tensor))
    }

    /// Returns the SHA-256, in hexadecimal, of names, types and shapes of all tensors, and of the first
    /// elements of each.
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

/// Returns the end of a sentence about a folder that lacks the file `wanted`: the weights in another format
/// that it has, and how to convert them; nothing if it has none.
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

/// Returns the file of each tensor that an index names.
///
/// # Errors
/// Text that is no index, a file that is not in the folder itself.
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
