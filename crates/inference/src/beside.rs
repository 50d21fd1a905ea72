//! Files beside a model's weights: its tokenizer, chat template and generation settings.

use std::path::PathBuf;

use config::RunConfig;
use data::Tokenizer;
use nn::Examples;
use run::{Result, RunError};
use serde_json::Value;

use crate::trained::{Trained, files_in};

/// Names of the files that are copied with a model: tokenizer and generation settings.
const BESIDE: &[&str] = &[
    "added_tokens.json",
    CHAT_TEMPLATE,
    GENERATION,
    "merges.txt",
    "special_tokens_map.json",
    TOKENIZER,
    "tokenizer.model",
    TOKENIZER_CONFIG,
    "vocab.json",
];

/// Names of the tokenizer's files and of the generation settings.
const TOKENIZER: &str = "tokenizer.json";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
const GENERATION: &str = "generation_config.json";
/// Name of the chat template, and its maximum size in bytes.
const CHAT_TEMPLATE: &str = "chat_template.jinja";
const MOST_TEMPLATE: u64 = 16 << 20;

/// The files of a model's tokenizer and generation settings.
pub(crate) struct Beside {
    /// Paths of files to copy.
    pub(crate) files: Vec<PathBuf>,
    /// Names and contents of generated files.
    pub(crate) contents: Vec<(&'static str, Vec<u8>)>,
}

impl Beside {
    /// Returns the files that belong to a model: those in its folders, with the chat template and tokenizer
    /// replaced by its run's.
    ///
    /// # Errors
    /// The tokenizer is invalid, or a file beside it is.
    pub(crate) fn from_model(trained: &Trained) -> Result<Self> {
        let config = &trained.config;
        let mut files = files_in(&trained.folders(), BESIDE);
        let mut contents = Vec::new();
        if let Some(file) = files.iter().find(|file| file.ends_with(TOKENIZER)) {
            let read = Tokenizer::from_name(&file.to_string_lossy());
            read.map_err(|error| RunError::Refused(error.to_string()))?;
        }
        if let Some(template) = &config.data.chat_template {
            files.retain(|file| file.file_name() != template.file_name());
            files.push(template.clone());
        }
        let has = |name: &str| files.iter().any(|file| file.ends_with(name));
        let has_config = has(TOKENIZER_CONFIG);
        let has_generation = has(GENERATION);
        for (name, text) in tokenizer_files(config, has_config) {
            // The model's own settings take precedence.
            if !(name == GENERATION && has_generation) {
                files.retain(|file| !file.ends_with(name));
                contents.push((name, text));
            }
        }
        Ok(Beside { files, contents })
    }

    /// Removes generation settings; adapters use their model's.
    pub(crate) fn without_generation(mut self) -> Self {
        self.files.retain(|file| !file.ends_with(GENERATION));
        self.contents.retain(|(name, _)| *name != GENERATION);
        self
    }

    /// Adds generation settings with these start and end tokens, if there are no settings yet.
    pub(crate) fn with_text_tokens(mut self, tokens: &[(&'static str, Value)]) -> Self {
        let has_settings = self.files.iter().any(|file| file.ends_with(GENERATION))
            || self.contents.iter().any(|(name, _)| *name == GENERATION);
        if !has_settings && tokens.iter().any(|(_, token)| !token.is_null()) {
            let tokens = tokens.iter().map(|(key, token)| ((*key).to_owned(), token.clone()));
            self.contents.push((GENERATION, pretty(&tokens.collect()).into_bytes()));
        }
        self
    }
}

/// Returns the files of a run's tokenizer; empty for an unknown tokenizer, and for the default byte tokenizer
/// if the model came from a folder.
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
        // Without it, transformers would use the model's usual tokenizer class.
        let mut written = serde_json::Map::new();
        written.insert("tokenizer_class".to_owned(), "PreTrainedTokenizerFast".into());
        written.insert("clean_up_tokenization_spaces".to_owned(), false.into());
        let tokens = [config.text_start(tokenizer), config.text_ends(tokenizer).first().copied()];
        // A special token that no file defines was empty during training.
        let template = chat_template(config, &beside);
        let is_empty = |key: &str| template.contains(key) && tokenizer.special_tokens().text(key).is_none();
        for (key, token) in ["bos_token", "eos_token"].into_iter().zip(tokens) {
            let text = token.filter(|_| !is_empty(key)).and_then(|token| tokenizer.spelling(token));
            written.extend(text.map(|text| (key.to_owned(), text.into())));
        }
        files.push((TOKENIZER_CONFIG, pretty(&written).into_bytes()));
    }
    files.extend(beside);
    files
}

/// Returns the text of a run's chat template, from its own file or from its tokenizer's; empty without a
/// template.
fn chat_template(config: &RunConfig, beside: &[(&'static str, Vec<u8>)]) -> String {
    let own = config.data.chat_template.as_ref();
    let own = own.map(|file| system::input::read_text(file, MOST_TEMPLATE).unwrap_or_default());
    let of_tokenizer = || {
        let file = beside.iter().find(|(name, _)| *name == CHAT_TEMPLATE);
        file.map(|(_, text)| String::from_utf8_lossy(text).into_owned())
    };
    own.or_else(of_tokenizer).unwrap_or_default()
}

/// Returns whether a model's examples are tokens.
pub(crate) fn takes_tokens(config: &RunConfig) -> bool {
    matches!(config.model.examples(), Examples::Tokens { .. })
}

/// Formats a JSON object, indented by two spaces.
pub(crate) fn pretty(object: &serde_json::Map<String, Value>) -> String {
    // A map of JSON values always serializes.
    serde_json::to_string_pretty(object).unwrap_or_default() + "\n"
}
