//! Checks of the keys for validation.

use keys::{Error, RawValues};

use crate::choices::DataKind;
use crate::run_config::RunConfig;
use crate::sections::{Checkpoint, Data, Train};

/// Refuses data that needs validation but has none, and keys that depend on validations that never happen.
pub(crate) fn check_validation(raw: &RawValues, config: &RunConfig) -> Result<(), Error> {
    let Train { patience, validate_every, .. } = config.train;
    if patience > 0 && validate_every == 0 {
        let reason = "train.patience needs train.validate_every, which is 0".to_owned();
        return Err(raw.conflict(&[Train::patience], reason));
    }
    let is_empty = config.data.validation_fraction == 0.0;
    if is_empty && !matches!(config.data.kind, DataKind::Chat | DataKind::Preference) {
        let kind = config.data.kind.name();
        let reason = format!(
            "data.validation_fraction = 0 is for data.kind = \"chat\" or \"preference\", and data.kind = \
             \"{kind}\" needs validation data: use a number above 0"
        );
        return Err(raw.conflict(&[Data::validation_fraction, Data::kind], reason));
    }
    let comparing =
        [(Train::validate_every, validate_every > 0), (Checkpoint::keep_best, config.checkpoint.keep_best)];
    match comparing.into_iter().find(|(_, is_set)| *is_set && !config.validates()) {
        Some((key, _)) => {
            let reason = format!(
                "{key} needs validation data: data.validation_paths, or a data.validation_fraction above 0"
            );
            Err(raw.conflict(&[key, Data::validation_fraction], reason))
        }
        None => Ok(()),
    }
}
