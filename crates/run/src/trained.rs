//! A trained model: a run, a checkpoint or a folder of Hugging Face.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use config::RunConfig;
use pretrained::{CONFIG, PretrainedModel};
use worker::{Start, Weights};

use crate::error::{Result, RunError};
use crate::resume::check_model;
use crate::run_report::configuration_of;

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
        Ok(Trained { config, weights: Arc::new(checkpoint) })
    }

    fn of_folder(path: &Path, sets: &[String]) -> Result<Self> {
        let config = folder_config(path, sets)?;
        let weights = open(path, &config)?;
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

/// Opens a folder as the model of a configuration. Errors: a family that such folders do not have; tensors
/// that are not those of the model.
fn open(path: &Path, config: &RunConfig) -> Result<PretrainedModel> {
    let Some(model) = config.model.hugging_face() else {
        let text = format!("transformers have no model like this model.kind = \"{}\"", config.model.kind());
        return Err(RunError::Refused(text));
    };
    Ok(PretrainedModel::open(path, model)?)
}

/// The weights that `model.from` names, if it does. Errors: those of reading the folder.
pub(crate) fn of_folder(config: &RunConfig) -> Result<Start> {
    let Some(path) = config.model.weights() else { return Ok(Start::Drawn) };
    let weights = open(path, config).map_err(|error| {
        let origin = config.origins.of("model.from");
        RunError::Refused(format!("{origin}: model.from: {error}"))
    })?;
    Ok(Start::Weights(Arc::new(weights)))
}

/// Returns those of `names` that are files in `folder`.
pub(crate) fn files_in(folder: &Path, names: &[&str]) -> Vec<PathBuf> {
    names.iter().map(|name| folder.join(name)).filter(|path| path.is_file()).collect()
}
