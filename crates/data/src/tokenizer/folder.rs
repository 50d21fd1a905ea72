//! Reads the files beside a `tokenizer.json` that belong to it.

use crate::Error;
use crate::data_file::DataFile;
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

use super::class_defaults::class_of;

pub(super) const CONFIGURATION: &str = "tokenizer_config.json";
/// File name of special tokens by name, in older folders.
pub(super) const SPECIAL: &str = "special_tokens_map.json";
/// File name of added tokens' ids, in older folders.
pub(super) const ADDED: &str = "added_tokens.json";
/// File name of settings for generation.
pub(super) const GENERATION: &str = "generation_config.json";
/// Names of the files beside a tokenizer that belong to it.
pub(super) const BESIDE: [&str; 5] = [CONFIGURATION, SPECIAL, ADDED, GENERATION, "chat_template.jinja"];
/// File name of the model's configuration, which may name the tokenizer class.
const MODEL: &str = "config.json";
/// Maximum size of such a file in bytes.
const MOST_BYTES: u64 = 16 << 20;

/// The files beside a tokenizer.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct TokenizerFolder {
    path: PathBuf,
    /// (name, contents) of the files that belong to the tokenizer. [`CONFIGURATION`] names the tokenizer
    /// class, even if it was only in the model's configuration.
    pub(super) files: Vec<(&'static str, Vec<u8>)>,
}

impl TokenizerFolder {
    /// Reads the existing files beside `tokenizer`.
    ///
    /// # Errors
    /// A file cannot be read or is too long, or a configuration is not a JSON object.
    pub(super) fn read(tokenizer: &Path) -> Result<Self, Error> {
        let mut folder =
            Self { path: tokenizer.parent().unwrap_or(Path::new("")).to_owned(), files: Vec::new() };
        for name in BESIDE {
            if let Some(contents) = read_file(&folder.path.join(name))? {
                folder.files.push((name, contents));
            }
        }
        folder.name_class()?;
        Ok(folder)
    }

    pub(super) fn path_of(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Returns the JSON object in a file; empty if there is no such file.
    ///
    /// # Errors
    /// The file is not a JSON object.
    pub(super) fn object(&self, name: &str) -> Result<Map<String, Value>, Error> {
        match self.files.iter().find(|(file, _)| *file == name) {
            Some((_, contents)) => object(&self.path_of(name), contents),
            None => Ok(Map::new()),
        }
    }

    /// Adds the tokenizer class to the tokenizer's configuration, if only the model's configuration implies
    /// it.
    fn name_class(&mut self) -> Result<(), Error> {
        const CLASS: &str = "tokenizer_class";
        let mut configuration = self.object(CONFIGURATION)?;
        if configuration.get(CLASS).is_some_and(Value::is_string) {
            return Ok(());
        }
        let path = self.path_of(MODEL);
        let Some(contents) = read_file(&path)? else { return Ok(()) };
        // A damaged one is refused where the model is read.
        let Ok(model) = object(&path, &contents) else { return Ok(()) };
        let named = model.get(CLASS).and_then(Value::as_str);
        let implied = || class_of(model.get("model_type")?.as_str()?);
        let Some(class) = named.or_else(implied) else { return Ok(()) };
        configuration.insert(CLASS.to_owned(), class.into());
        let text = serde_json::to_string_pretty(&configuration).unwrap_or_default() + "\n";
        self.files.retain(|(name, _)| *name != CONFIGURATION);
        self.files.push((CONFIGURATION, text.into_bytes()));
        Ok(())
    }
}

/// Reads a JSON object; `None` if there is no such file.
///
/// # Errors
/// The file cannot be read, or is not a JSON object.
pub(super) fn read_object(path: &Path) -> Result<Option<Map<String, Value>>, Error> {
    read_file(path)?.map(|contents| object(path, &contents)).transpose()
}

/// Reads a file; `None` if there is none.
///
/// # Errors
/// The file cannot be read or is too long, or the path is a folder or a dangling link.
fn read_file(path: &Path) -> Result<Option<Vec<u8>>, Error> {
    if path.symlink_metadata().is_err() {
        return Ok(None);
    }
    DataFile::open(path)?.read_whole(MOST_BYTES).map(Some)
}

fn object(path: &Path, contents: &[u8]) -> Result<Map<String, Value>, Error> {
    serde_json::from_slice(contents).map_err(|error| Error::BadTokenizerFile {
        path: path.to_owned(),
        reason: format!("it is no JSON object: {error}"),
    })
}
