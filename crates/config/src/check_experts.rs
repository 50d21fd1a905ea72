//! Checks of the keys that balance the load of experts.

use keys::{Error, RawValues};

use crate::run_config::RunConfig;
use crate::sections::{ModelSection, Train};

/// Refuses keys that balance the load of experts if the model has none.
pub(crate) fn check_experts(raw: &RawValues, config: &RunConfig) -> Result<(), Error> {
    let experts = config.model.experts();
    let losses = [
        (Train::balance_loss, config.train.balance_loss),
        (Train::router_z_loss, config.train.router_z_loss),
    ];
    let refused = |key: &'static str, reason: String| {
        let keys = [Some(key), Some(ModelSection::kind), experts.map(|experts| experts.key)];
        Err(raw.conflict(&keys.into_iter().flatten().collect::<Vec<_>>(), reason))
    };
    if let Some((key, value)) = losses.into_iter().find(|(_, value)| *value > 0.0 && experts.is_none()) {
        return refused(key, format!("{key} = {value} balances experts, and the model has none"));
    }
    let rate = config.train.correction_rate;
    let is_corrected = experts.is_some_and(|own| own.is_corrected);
    if rate > 0.0 && !is_corrected {
        let key = Train::correction_rate;
        let reason = format!(
            "{key} = {rate} moves corrections of experts, and the model has none: \
             model.router_correction = true adds them to a model with experts"
        );
        return refused(key, reason);
    }
    Ok(())
}
