//! A trained model: a run, a checkpoint or a folder of Hugging Face.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use config::RunConfig;
use pretrained::CONFIG;
use worker::Weights;

use crate::error::{Result, RunError};
use crate::resume::check_model;
use crate::run_report::configuration_of;
use crate::weights;

/// A trained model.
#[derive(Clone, Debug)]
pub(crate) struct Trained {
    /// Its run's configuration, or the one that its folder implies.
    pub(crate) config: RunConfig,
    /// Its weights.
    pub(crate) weights: Arc<dyn Weights>,
}

impl Trained {
    /// Finds the model at `path`, with `sets` over its configuration. `step` picks a checkpoint of a run.
    ///
    /// # Errors
    /// No run, checkpoint or folder there; one that is damaged or of another model; settings that are wrong.
    pub(crate) fn find(path: &Path, step: Option<u64>, sets: &[String]) -> Result<Self> {
        if path.join(CONFIG).is_file() && step.is_none() {
            return Self::of_folder(path, sets);
        }
        if !path.exists() {
            return Err(RunError::Refused(format!(
                "{}: there is no such run, checkpoint or folder",
                path.display()
            )));
        }
        let config = configuration_of(&checkpoint::run_of(path), sets)?;
        let checkpoint = checkpoint::find(path, step)?;
        check_model(&config, &checkpoint)?;
        let weights = weights::complete(checkpoint, &config)?;
        Ok(Trained { config, weights })
    }

    fn of_folder(path: &Path, sets: &[String]) -> Result<Self> {
        let config = folder_config(path, sets)?;
        let weights = weights::open(path, &config)?;
        Ok(Trained { config, weights: Arc::new(weights) })
    }
}

/// The configuration that a folder implies, with `sets` over it. Errors: a model that there is no family for.
pub(crate) fn folder_config(path: &Path, sets: &[String]) -> Result<RunConfig> {
    let unreadable = |source| RunError::File { path: path.to_owned(), source };
    let absolute = std::path::absolute(path).map_err(unreadable)?;
    let Some(name) = absolute.to_str() else {
        let text = format!("{}: its name is not UTF-8", path.display());
        return Err(RunError::Refused(text));
    };
    // A JSON string is a TOML string.
    let from = serde_json::Value::from(name);
    let text = format!("[model]\nfrom = {from}\n[data]\nkind = \"synthetic\"\n");
    Ok(RunConfig::parse(&text, &path.join(CONFIG).to_string_lossy(), Path::new("/"), sets)?)
}

/// Returns those of `names` that are files in `folder`.
pub(crate) fn files_in(folder: &Path, names: &[&str]) -> Vec<PathBuf> {
    names.iter().map(|name| folder.join(name)).filter(|path| path.is_file()).collect()
}
