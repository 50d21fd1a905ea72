//! Sources of weights: Hugging Face folders, PEFT folders, and checkpoints.

use std::path::Path;
use std::sync::Arc;

use checkpoint::Checkpoint;
use config::RunConfig;
use device::{DType, Description};
use nn::{FolderTensor, HuggingFaceModel, Model, Parameters, Recompute, Shards, Stage};
use pretrained::PretrainedModel;
use worker::setup::blueprint;
use worker::{Layered, Start, Weights, build};

use crate::error::{Result, RunError};

/// Returns the initial state of a run without a checkpoint: the folders of `model.from` and `lora.from`, or
/// drawn weights.
///
/// # Errors
/// The folders cannot be read.
pub(crate) fn start(config: &RunConfig) -> Result<Start> {
    Ok(of_folders(config)?.map_or(Start::Drawn, Start::Weights))
}

/// Returns the weights in the folders of `model.from` and `lora.from`; `None` if neither is set.
///
/// # Errors
/// The folders cannot be read.
pub fn of_folders(config: &RunConfig) -> Result<Option<Arc<dyn Weights>>> {
    Ok(match (adapters_of_folder(config)?, of_folder(config)?) {
        (Some(adapters), folder) => Some(Arc::new(Layered::new(adapters, folder))),
        (None, folder) => folder,
    })
}

/// Returns the weights of `model.from` if checkpoints leave out frozen parameters; otherwise `None`.
///
/// # Errors
/// The folder cannot be read.
pub(crate) fn base(config: &RunConfig) -> Result<Option<Arc<dyn Weights>>> {
    if config.leaves_out_frozen() { of_folder(config) } else { Ok(None) }
}

/// Returns the weights that a checkpoint omits; `None` if it omits none.
///
/// # Errors
/// The folder cannot be read, or has other weights.
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

/// Returns a checkpoint combined with the weights that it omits.
///
/// # Errors
/// The folder cannot be read, or has other weights.
pub fn complete(checkpoint: Checkpoint, config: &RunConfig) -> Result<Arc<dyn Weights>> {
    Ok(match base_of(&checkpoint, config)? {
        None => Arc::new(checkpoint),
        Some(base) => Arc::new(Layered::new(Arc::new(checkpoint), Some(base))),
    })
}

/// Opens a Hugging Face folder as the configured model.
///
/// # Errors
/// The model family has no such folders, or the tensors belong to another model.
pub fn open(path: &Path, config: &RunConfig) -> Result<PretrainedModel> {
    let Some(model) = config.hugging_face() else {
        let text = format!("transformers have no model like this model.kind = \"{}\"", config.model.kind());
        return Err(RunError::Refused(text));
    };
    Ok(match config.model.resizes_vocabulary() {
        true => PretrainedModel::open_resized(path, model)?,
        false => PretrainedModel::open(path, model)?,
    })
}

/// Opens the weights in `model.from`; `None` if it is not set.
fn of_folder(config: &RunConfig) -> Result<Option<Arc<dyn Weights>>> {
    let Some(path) = config.model.weights() else { return Ok(None) };
    let weights = open(path, config).map_err(|error| refused(config, "model.from", &error))?;
    Ok(Some(Arc::new(weights)))
}

/// Opens the adapters in `lora.from`; `None` if it is not set.
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

/// Describes the configured adapters in PEFT's format; `tensors` are their matrices. `None` without adapters.
pub fn adapters(config: &RunConfig, tensors: &[FolderTensor]) -> Option<HuggingFaceModel> {
    let base = config.model.folder().and_then(Path::to_str);
    let model = config.model.hugging_face();
    let is_transposed = model.is_some_and(|model| model.tensors.iter().any(|tensor| tensor.transposed));
    Some(config.tuning.lora()?.folder(tensors, base, is_transposed))
}

/// Builds the unsharded model on Meta, for its names and shapes.
///
/// # Errors
/// No model can be built with these sizes.
pub fn whole(config: &RunConfig) -> Result<Box<dyn Model>> {
    whole_in(config, Shards::ONE)
}

/// Builds the model on Meta with all tensor-parallel shards in this process.
///
/// # Errors
/// No model can be built with these sizes.
pub fn whole_in_shards(config: &RunConfig) -> Result<Box<dyn Model>> {
    let all = config.parallel.layer_shards().all;
    whole_in(config, Shards { all, here: all })
}

fn whole_in(config: &RunConfig, shards: Shards) -> Result<Box<dyn Model>> {
    let device = blueprint::meta(&Description::host())?;
    let parameters = Parameters::new(&device, config.train.seed, DType::F32)
        .tuned(Arc::clone(&config.tuning))
        .in_shards(shards, config.model.placements())
        .predicting(build::prediction_modules(config));
    Ok(config.model.build(parameters, &Stage::whole(config.layers()), Recompute::NONE)?)
}
