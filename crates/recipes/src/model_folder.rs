//! The folder of a model to fine-tune.

use std::path::Path;

use config::RunConfig;

use crate::document::Document;
use crate::error::{RecipeError, Result};

/// Maximum size of a tokenizer's configuration in bytes.
const MOST_BYTES: u64 = 16 << 20;

/// The folder of a model to fine-tune.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelFolder {
    /// Description of the model's family and sizes.
    pub summary: String,
    /// Maximum number of tokens in a sequence.
    pub context: usize,
    /// Whether the folder has a tokenizer.
    pub has_tokenizer: bool,
    /// Whether the folder has a chat template.
    pub has_template: bool,
}

impl ModelFolder {
    /// Reads the folder called `name` in `directory`.
    ///
    /// # Errors
    /// There is no folder, it has no model, or the model's family is unknown.
    pub fn open(directory: &Path, name: &str) -> Result<Self> {
        let folder = directory.join(name);
        let refused = |reason: &str| Err(RecipeError::Refused(format!("{name}: {reason}")));
        if folder.is_file() {
            return refused("it is a file: name the folder of a model, with config.json and its weights");
        }
        if !folder.is_dir() {
            let advice = config::how_to_download(name);
            return refused(&advice.map_or_else(
                || "there is no such folder".to_owned(),
                |advice| format!("there is no such folder; {advice}"),
            ));
        }
        if !folder.join("config.json").exists() && folder.join("adapter_config.json").exists() {
            return refused("it has adapters: name the folder of their model, and set lora.from afterwards");
        }
        let mut probe = Document::new(Vec::new());
        probe.set("model.from", folder.to_string_lossy().into_owned(), "");
        probe.set("data.kind", "synthetic", "");
        let config = RunConfig::parse_made(&probe.to_toml(), name, directory, &[])?;
        Ok(Self {
            summary: config.model.summary(),
            context: config.model.examples().units(),
            has_tokenizer: folder.join("tokenizer.json").exists(),
            has_template: has_template(&folder),
        })
    }
}

/// Returns whether a tokenizer's folder has a chat template, in a separate file or in its configuration.
pub(crate) fn has_template(folder: &Path) -> bool {
    let configuration = || {
        let text = system::input::read_text(&folder.join("tokenizer_config.json"), MOST_BYTES).ok()?;
        let values: serde_json::Value = serde_json::from_str(&text).ok()?;
        Some(values.get("chat_template").is_some_and(|template| !template.is_null()))
    };
    folder.join("chat_template.jinja").exists() || configuration().unwrap_or(false)
}
