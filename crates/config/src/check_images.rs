//! Checks of the keys of images, and of the learning rate's steps.

use keys::{Error, RawValues};
use nn::Examples;

use crate::choices::{DataKind, ScheduleName};
use crate::run_config::RunConfig;
use crate::sections::{Data, ModelSection, Optim, Train};

/// Checks the settings of images against the model's.
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

/// Checks the steps at which the learning rate changes.
pub(crate) fn check_schedule(raw: &RawValues, config: &RunConfig) -> Result<(), Error> {
    if config.train.epochs > 0.0 && config.data.kind == DataKind::Synthetic {
        let reason =
            "train.epochs needs data that ends, and data.kind = \"synthetic\" does not: use train.steps";
        return Err(raw.conflict(&[Train::epochs, Data::kind], reason.to_owned()));
    }
    let (decay, steps) = (config.optim.decay_steps, config.train.steps);
    if config.optim.schedule == ScheduleName::Wsd && decay > steps && config.train.epochs == 0.0 {
        let reason = format!("optim.decay_steps = {decay} is more than train.steps = {steps}");
        return Err(raw.conflict(&[Optim::decay_steps, Train::steps], reason));
    }
    let Optim { schedule, milestones, .. } = &config.optim;
    if *schedule != ScheduleName::Step || milestones.is_sorted_by(|one, next| one < next) {
        return Ok(());
    }
    let reason = format!("optim.milestones = {milestones:?} are not in increasing order");
    Err(raw.conflict(&[Optim::milestones], reason))
}
