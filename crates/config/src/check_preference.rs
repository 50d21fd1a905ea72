//! Checks of the keys of preference training.

use keys::{Error, RawValues};

use crate::choices::{DataKind, PreferenceLoss};
use crate::run_config::RunConfig;
use crate::sections::{Data, Parallel, Preference};

/// Refuses settings that belong to another preference loss, and grids on which no rank has a whole answer.
pub(crate) fn check_preference(raw: &RawValues, config: &RunConfig) -> Result<(), Error> {
    if config.data.kind != DataKind::Preference {
        return Ok(());
    }
    let Preference { loss, beta, label_smoothing, lambda } = config.preference;
    let default = Preference::DEFAULT_FACTOR;
    let foreign = match loss {
        PreferenceLoss::Dpo if lambda != default => Some((Preference::lambda, "\"orpo\"")),
        PreferenceLoss::Ipo if lambda != default => Some((Preference::lambda, "\"orpo\"")),
        PreferenceLoss::Orpo if beta != default => Some((Preference::beta, "\"dpo\" or \"ipo\"")),
        PreferenceLoss::Ipo | PreferenceLoss::Orpo if label_smoothing > 0.0 => {
            Some((Preference::label_smoothing, "\"dpo\""))
        }
        _ => None,
    };
    if let Some((key, of)) = foreign {
        let is = loss.name();
        let reason = format!("{key} belongs to preference.loss = {of}, and preference.loss is \"{is}\"");
        return Err(raw.conflict(&[key, Preference::loss], reason));
    }
    if config.parallel.context_lanes > 1 {
        let reason = format!(
            "parallel.context_lanes = {} divides sequences, and data.kind = \"preference\" compares whole \
             answers: use 1",
            config.parallel.context_lanes
        );
        return Err(raw.conflict(&[Parallel::context_lanes, Parallel::context, Data::kind], reason));
    }
    Ok(())
}
