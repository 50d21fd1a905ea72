//! Checks of the keys for image data.

use keys::{Error, RawValues};
use nn::Examples;

use crate::choices::DataKind;
use crate::run_config::RunConfig;
use crate::sections::{Data, ModelSection, Train};

/// Checks the image settings against the model's.
pub(crate) fn check_images(raw: &RawValues, config: &RunConfig) -> Result<(), Error> {
    let Examples::Images { channels, .. } = config.model.examples() else {
        if config.train.label_smoothing > 0.0 {
            let reason = format!(
                "train.label_smoothing is for models of images, and model.kind = \"{}\" is none",
                config.model.kind()
            );
            return Err(raw.conflict(&[Train::label_smoothing], reason));
        }
        return Ok(());
    };
    if config.data.kind != DataKind::Images {
        return Ok(());
    }
    if ![1, 3].contains(&channels) {
        let reason = format!("images have 1 or 3 channels, and the model takes {channels}");
        return Err(raw.conflict(&[Data::kind, ModelSection::kind], reason));
    }
    for (key, values) in [(Data::mean, &config.data.mean), (Data::deviation, &config.data.deviation)] {
        if values.len() != 1 && values.len() != channels {
            let reason = format!(
                "{key} has {} numbers, and the model's images have {channels} channels",
                values.len()
            );
            return Err(raw.conflict(&[key], reason));
        }
    }
    Ok(())
}
