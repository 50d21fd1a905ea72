//! A trained model: a run, a checkpoint or a folder of Hugging Face.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use config::{Data, RunConfig};
use data::{ChatTemplate, Tokenizer};
use pretrained::CONFIG;
use worker::Weights;

use run::check_model;
use run::configuration_of;
use run::weights;
use run::{Result, RunError};

/// A trained model.
#[derive(Clone, Debug)]
pub(crate) struct Trained {
    /// Configuration of the run, or the one that the folder implies.
    pub(crate) config: RunConfig,
    /// Trained weights.
    pub(crate) weights: Arc<dyn Weights>,
    /// The folder of Hugging Face, or the directory of the run.
    home: PathBuf,
    is_run: bool,
}

/// The file of a folder's tokenizer.
const TOKENIZER: &str = "tokenizer.json";

impl Trained {
    /// Finds the model at `path`, with `sets` over its configuration. `step` picks a checkpoint of a run.
    ///
    /// # Errors
    /// No run, checkpoint or folder there; one that is damaged or of another model; settings that are wrong.
    pub(crate) fn find(path: &Path, step: Option<u64>, sets: &[String]) -> Result<Self> {
        if Self::is_folder(path, step) {
            return Self::of_folder(path, NO_DATA, sets);
        }
        if !path.exists() {
            return Err(RunError::Refused(format!(
                "{}: there is no such run, checkpoint or folder",
                path.display()
            )));
        }
        let home = checkpoint::run_of(path);
        let config = configuration_of(&home, sets)?;
        let checkpoint = checkpoint::find(path, step)?;
        check_model(&config, &checkpoint)?;
        let weights = weights::complete(checkpoint, &config)?;
        Ok(Trained { config, weights, home, is_run: true })
    }

    /// Returns whether `path` is a folder of Hugging Face, which has no steps.
    pub(crate) fn is_folder(path: &Path, step: Option<u64>) -> bool {
        path.join(CONFIG).is_file() && step.is_none()
    }

    /// Reads the folder at `path`, with the lines `data` as its `[data]` and `sets` over its configuration.
    ///
    /// # Errors
    /// As for [`Trained::find`].
    pub(crate) fn of_folder(path: &Path, data: &str, sets: &[String]) -> Result<Self> {
        let config = folder_config(path, data, sets)?;
        let weights = weights::open(path, &config)?;
        Ok(Trained { config, weights: Arc::new(weights), home: path.to_owned(), is_run: false })
    }

    /// Returns whether the model is a run or a checkpoint of one.
    pub(crate) fn is_run(&self) -> bool {
        self.is_run
    }

    /// The model's own or original Hugging Face folder, which may no longer exist.
    pub(crate) fn folder(&self) -> Option<&Path> {
        if self.is_run { self.config.model.folder() } else { Some(&self.home) }
    }

    /// Returns the tokenizer of the model's texts: the run's or that of `--set`, or else that of the model's
    /// folder. Errors: there is none, or it cannot be read.
    pub(crate) fn tokenizer(&self) -> Result<Tokenizer> {
        let is_named = self.is_run || self.config.origins.of(Data::tokenizer).is_override();
        let configured = Some(&self.config.tokenizer).filter(|own| is_named && **own != Tokenizer::None);
        let file = || self.folder().map(|folder| folder.join(TOKENIZER)).filter(|file| file.is_file());
        let found = match configured {
            Some(configured) => configured.clone(),
            None => {
                file().map_or(Ok(Tokenizer::None), |file| Tokenizer::from_name(&file.to_string_lossy()))?
            }
        };
        if found == Tokenizer::None {
            let why = match self.is_run {
                false => format!("{}: it has no {TOKENIZER}", self.home.display()),
                true => "data.tokenizer = \"none\" makes no text of tokens".to_owned(),
            };
            return Err(RunError::Refused(why));
        }
        Ok(found)
    }

    /// Returns the chat template: that of the run, or that of its model's folder. Errors:
    /// there is none, or it cannot be read.
    pub(crate) fn chat_template(&self) -> Result<ChatTemplate> {
        let own = ChatTemplate::beside(&self.home.join(TOKENIZER));
        let found = match (own, self.folder().filter(|_| self.is_run)) {
            (Err(_), Some(folder)) => ChatTemplate::beside(&folder.join(TOKENIZER)),
            (own, _) => own,
        };
        found.map_err(|error| RunError::Refused(error.to_string()))
    }
}

/// The `[data]` of a model that is used without data of its own.
pub(crate) const NO_DATA: &str = "kind = \"synthetic\"\n";

/// The configuration that a folder implies, with the lines `data` as its `[data]` and `sets` over it. Errors:
/// a model that there is no family for, settings that are wrong.
pub(crate) fn folder_config(path: &Path, data: &str, sets: &[String]) -> Result<RunConfig> {
    let unreadable = |source| RunError::File { path: path.to_owned(), source };
    let absolute = std::path::absolute(path).map_err(unreadable)?;
    let Some(name) = absolute.to_str() else {
        let text = format!("{}: its name is not UTF-8", path.display());
        return Err(RunError::Refused(text));
    };
    // A JSON string is a TOML string.
    let from = serde_json::Value::from(name);
    let text = format!("[model]\nfrom = {from}\n[data]\n{data}");
    Ok(RunConfig::parse(&text, &path.join(CONFIG).to_string_lossy(), Path::new("/"), sets)?)
}

/// Returns those of `names` that are files in `folder`.
pub(crate) fn files_in(folder: &Path, names: &[&str]) -> Vec<PathBuf> {
    names.iter().map(|name| folder.join(name)).filter(|path| path.is_file()).collect()
}
