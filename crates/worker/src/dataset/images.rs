//! Opens image data as configured.

use config::{Data, RunConfig};
use data::{ImageOptions, ImageSource, ImageSplit};
use nn::Examples;
use telemetry::units::grouped;

use crate::error::{Result, WorkerError};

/// Opens the configured images.
///
/// # Errors
/// The data is invalid, or the model takes other examples.
pub(crate) fn open(config: &RunConfig) -> Result<ImageSource> {
    let data = &config.data;
    let train = &config.train;
    let Examples::Images { channels, size, classes } = config.model.examples() else {
        return Err(WorkerError::Refused("data.kind = \"images\" needs a model of images".to_owned()));
    };
    let refused = |source: data::Error| {
        let key = Data::paths;
        WorkerError::Data { origin: config.origins.find(key), key, source: source.into() }
    };
    let split = ImageSplit::open(&data.base, &data.paths, &data.validation_paths, data.validation_fraction)
        .map_err(refused)?;
    let training = split.training_images();
    let validation = split.validation_images();
    tracing::info!("{} training and {} validation images", grouped(training), grouped(validation));
    if (1..classes).contains(&split.classes()) {
        let folders = split.classes();
        tracing::warn!(
            "{folders} classes have a folder, and the model has {classes}: they are numbered from 0 in the order of \
             their names"
        );
    }
    let options = ImageOptions {
        channels,
        size,
        classes,
        micro_batch: train.micro_batch_size,
        seed: train.seed,
        validation_micro_batches: train.validation_micro_batches,
        crop: data.crop,
        crop_padding: data.crop_padding,
        flip: data.flip,
        mean: data.mean.clone(),
        deviation: data.deviation.clone(),
        skip_invalid: data.skip_invalid,
        mixup: data.mixup,
    };
    ImageSource::new(split, options).map_err(refused)
}
