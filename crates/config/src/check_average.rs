//! Checks of the keys for an average of the weights.

use keys::{Error, RawValues};

use crate::run_config::RunConfig;
use crate::sections::{Data, Train};

/// Refuses keys of an average that does not exist, never begins, or is never validated.
pub(crate) fn check_average(raw: &RawValues, config: &RunConfig) -> Result<(), Error> {
    let Train { ema, ema_every, ema_start, validate_ema, steps, epochs, .. } = config.train;
    if ema == 0.0 {
        let without = [
            (Train::ema_every, ema_every > 1),
            (Train::ema_start, ema_start > 0),
            (Train::validate_ema, validate_ema),
        ];
        return match without.into_iter().find(|(_, is_changed)| *is_changed) {
            Some((key, _)) => {
                let reason = format!("{key} needs an average of the weights: set train.ema, such as 0.999");
                Err(raw.conflict(&[key, Train::ema], reason))
            }
            None => Ok(()),
        };
    }
    // The data, which is not open yet, decides the steps of epochs.
    if ema_start >= steps && epochs == 0.0 {
        let reason = format!("train.ema_start = {ema_start} is not below train.steps = {steps}");
        return Err(raw.conflict(&[Train::ema_start, Train::steps], reason));
    }
    if validate_ema && !config.validates() {
        let key = Train::validate_ema;
        let reason = format!(
            "{key} needs validation data: data.validation_paths, or a data.validation_fraction above 0"
        );
        return Err(raw.conflict(&[key, Data::validation_fraction], reason));
    }
    Ok(())
}
