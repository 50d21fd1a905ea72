//! Checks of the keys of images, and of the learning rate's steps.

use keys::{Error, Given};
use nn::Examples;

use crate::choices::{DataKind, ScheduleName};
use crate::run_config::RunConfig;
use crate::sections::{Data, ModelSection, Optim, Train};

/// Checks the settings of images against the model's.
pub(crate) fn check_images(given: &Given, config: &RunConfig) -> Result<(), Error> {
    let Examples::Images { channels, .. } = config.model.examples() else {
        if config.train.label_smoothing > 0.0 {
            let reason = format!(
                "train.label_smoothing is for models of images, and model.kind = \"{}\" is none",
                config.model.kind()
            );
            return Err(given.conflict(&[Train::label_smoothing], reason));
        }
        return Ok(());
    };
    if config.data.kind != DataKind::Images {
        return Ok(());
    }
    if ![1, 3].contains(&channels) {
        let reason = format!("images have 1 or 3 channels, and the model takes {channels}");
        return Err(given.conflict(&[Data::kind, ModelSection::kind], reason));
    }
    for (key, values) in [(Data::mean, &config.data.mean), (Data::deviation, &config.data.deviation)] {
        if values.len() != 1 && values.len() != channels {
            let reason = format!(
                "{key} has {} numbers, and the model's images have {channels} channels",
                values.len()
            );
            return Err(given.conflict(&[key], reason));
        }
    }
    Ok(())
}

/// Checks the steps at which the learning rate changes.
pub(crate) fn check_schedule(given: &Given, config: &RunConfig) -> Result<(), Error> {
    let Optim { schedule, milestones, step_size, .. } = &config.optim;
    if *schedule != ScheduleName::Step {
        return Ok(());
    }
    let reason = match (milestones.is_empty(), *step_size) {
        (true, 0) => "optim.schedule = \"step\" needs optim.milestones or optim.step_size",
        (false, 1..) => "optim.milestones and optim.step_size are given, and one is enough",
        _ if !milestones.is_sorted_by(|one, next| one < next) => {
            "optim.milestones are not in increasing order"
        }
        _ => return Ok(()),
    };
    Err(given.conflict(&[Optim::milestones, Optim::step_size, Optim::schedule], reason.to_owned()))
}
