//! The sources of weights: Hugging Face folders, PEFT folders, and checkpoints.

use std::path::Path;
use std::sync::Arc;

use checkpoint::Checkpoint;
use config::RunConfig;
use device::{DType, Description};
use nn::{FolderTensor, HuggingFaceModel, Model, Parameters, Recompute, Shards, Stage};
use pretrained::PretrainedModel;
use worker::setup::blueprint;
use worker::{Layered, Start, Weights};

use crate::error::{Result, RunError};

/// Returns the start of a run without a checkpoint: the folders of `model.from` and `lora.from`.
///
/// # Errors
/// Errors of reading the folders.
pub(crate) fn start(config: &RunConfig) -> Result<Start> {
    Ok(of_folders(config)?.map_or(Start::Drawn, Start::Weights))
}

/// Returns the weights in the folders of `model.from` and `lora.from`; `None` if neither is set.
///
/// # Errors
/// Errors of reading the folders.
pub fn of_folders(config: &RunConfig) -> Result<Option<Arc<dyn Weights>>> {
    Ok(match (adapters_of_folder(config)?, of_folder(config)?) {
        (Some(adapters), folder) => Some(Arc::new(Layered::new(adapters, folder))),
        (None, folder) => folder,
    })
}

/// The weights of frozen parameters that checkpoints leave out: those of `model.from`.
///
/// # Errors
/// Errors of reading the folder.
pub(crate) fn base(config: &RunConfig) -> Result<Option<Arc<dyn Weights>>> {
    if config.leaves_out_frozen() { of_folder(config) } else { Ok(None) }
}

/// Returns the weights that a checkpoint omits.
///
/// # Errors
/// Errors of reading the folder; other weights there.
pub(crate) fn base_of(checkpoint: &Checkpoint, config: &RunConfig) -> Result<Option<Arc<dyn Weights>>> {
    let Some(id) = checkpoint.base() else { return Ok(None) };
    let origin = config.origins.find("model.from");
    let Some(base) = of_folder(config)? else {
        let text = format!("{origin}: {} needs the folder of its model.from", checkpoint.path().display());
        return Err(RunError::Refused(text));
    };
    if base.id() != id {
        return Err(RunError::Refused(format!(
            "{origin}: model.from: {} has other weights than the run of {} began with",
            base.path().display(),
            checkpoint.path().display()
        )));
    }
    Ok(Some(base))
}

/// Returns a checkpoint with the weights that it omits.
///
/// # Errors
/// Errors of reading the folder; other weights there.
pub fn complete(checkpoint: Checkpoint, config: &RunConfig) -> Result<Arc<dyn Weights>> {
    Ok(match base_of(&checkpoint, config)? {
        None => Arc::new(checkpoint),
        Some(base) => Arc::new(Layered::new(Arc::new(checkpoint), Some(base))),
    })
}

/// Opens a folder as the model of a configuration.
///
/// # Errors
/// A family without such folders; tensors of another model.
pub fn open(path: &Path, config: &RunConfig) -> Result<PretrainedModel> {
    let Some(model) = config.model.hugging_face() else {
        let text = format!("transformers have no model like this model.kind = \"{}\"", config.model.kind());
        return Err(RunError::Refused(text));
    };
    Ok(match config.model.resizes_vocabulary() {
        true => PretrainedModel::open_resized(path, model)?,
        false => PretrainedModel::open(path, model)?,
    })
}

/// The weights that `model.from` names.
fn of_folder(config: &RunConfig) -> Result<Option<Arc<dyn Weights>>> {
    let Some(path) = config.model.weights() else { return Ok(None) };
    let weights = open(path, config).map_err(|error| refused(config, "model.from", &error))?;
    Ok(Some(Arc::new(weights)))
}

/// The adapters that `lora.from` names.
fn adapters_of_folder(config: &RunConfig) -> Result<Option<Arc<dyn Weights>>> {
    let Some(path) = &config.lora.from else { return Ok(None) };
    let Some(model) = adapters(config, whole(config)?.parameters().adapters().tensors()) else {
        return Ok(None);
    };
    let weights = PretrainedModel::open_adapters(path, model);
    let weights = weights.map_err(|error| refused(config, "lora.from", &error.into()))?;
    Ok(Some(Arc::new(weights)))
}

fn refused(config: &RunConfig, key: &str, error: &RunError) -> RunError {
    RunError::Refused(format!("{}: {key}: {error}", config.origins.find(key)))
}

/// The adapters of a configuration, whose matrices are `tensors`, in PEFT's format; `None` without adapters.
pub fn adapters(config: &RunConfig, tensors: &[FolderTensor]) -> Option<HuggingFaceModel> {
    let base = config.model.folder().and_then(Path::to_str);
    let model = config.model.hugging_face();
    let is_transposed = model.is_some_and(|model| model.tensors.iter().any(|tensor| tensor.transposed));
    Some(config.tuning.lora()?.folder(tensors, base, is_transposed))
}

/// The whole model on Meta, for names and shapes.
///
/// # Errors
/// Sizes of which no model can be built.
pub fn whole(config: &RunConfig) -> Result<Box<dyn Model>> {
    whole_in(config, Shards::ONE)
}

/// The whole model on Meta in shards, all of which are here.
///
/// # Errors
/// Sizes of which no model can be built.
pub fn whole_in_shards(config: &RunConfig) -> Result<Box<dyn Model>> {
    let all = config.parallel.layer_shards().all;
    whole_in(config, Shards { all, here: all })
}

fn whole_in(config: &RunConfig, shards: Shards) -> Result<Box<dyn Model>> {
    let device = blueprint::meta(&Description::host())?;
    let parameters = Parameters::new(&device, config.train.seed, DType::F32)
        .tuned(Arc::clone(&config.tuning))
        .in_shards(shards, config.model.placements());
    Ok(config.model.build(parameters, &Stage::whole(config.layers()), Recompute::NONE)?)
}
