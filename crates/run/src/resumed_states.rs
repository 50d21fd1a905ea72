//! Comparison of the optimizer's state in a checkpoint with the rules of a resumed run.

use std::collections::BTreeMap;

use checkpoint::{Checkpoint, CheckpointError};
use config::Optim;
use worker::Setup;
use worker::stages::optimizer;

use crate::error::Result;

/// Checks that the checkpoint has the state of the rule that updates each parameter.
///
/// # Errors
/// A parameter has another rule in the checkpoint.
pub(crate) fn check(setup: &Setup, checkpoint: &Checkpoint) -> Result<()> {
    let rules: BTreeMap<&str, &str> = checkpoint.names().filter_map(rule_and_parameter).collect();
    for entry in setup.blueprint.parameters.iter().filter(|entry| entry.trained) {
        let states = optimizer::state_arrays(&setup.config, entry);
        let here = states.first().and_then(|state| rule_and_parameter(&state.name)).map(|(_, rule)| rule);
        let there = rules.get(entry.name.as_str()).copied();
        if here == there {
            continue;
        }
        let updated = |rule: Option<&str>| {
            rule.map_or_else(|| "without state".to_owned(), |rule| format!("by \"{rule}\""))
        };
        let what = format!(
            "the kind of a parameter cannot change when a run is resumed: {} is updated {} here ({}), {} in \
             the checkpoint",
            entry.name,
            updated(here),
            Optim::groups,
            updated(there)
        );
        return Err(CheckpointError::OtherRun { path: checkpoint.path().to_owned(), what }.into());
    }
    Ok(())
}

/// Splits the name of a state array, such as `adamw.first.h.0.mlp_fc.weight`, into parameter and rule.
fn rule_and_parameter(array: &str) -> Option<(&str, &str)> {
    let mut parts = array.splitn(3, '.');
    let rule = parts.next()?;
    let _state = parts.next()?;
    Some((parts.next()?, rule))
}
