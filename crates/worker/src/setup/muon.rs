//! The parameters that Muon may update.

use config::{Optim, OptimKind, RunConfig};
use nn::ParameterRole;

/// Checks that Muon has matrices to update, and that groups of it have nothing else. `trained` has the
/// name and role of each trained parameter of the whole model.
///
/// # Errors
/// A sentence about the problem.
pub(super) fn check<'a>(
    config: &RunConfig,
    mut trained: impl Iterator<Item = (&'a str, ParameterRole)> + Clone,
) -> Result<(), String> {
    let optim = &config.optim;
    for (index, group) in optim.groups.iter().enumerate() {
        let is_other =
            |(name, role): &(&str, ParameterRole)| *role != ParameterRole::Hidden && group.matches(name);
        if group.kind == Some(OptimKind::Muon)
            && let Some((name, _)) = trained.clone().find(is_other)
        {
            return Err(format!(
                "{}: group {}: muon updates matrices of hidden layers, and {name} is none",
                Optim::groups,
                index + 1
            ));
        }
    }
    match optim.kind == OptimKind::Muon && !trained.any(|(_, role)| role == ParameterRole::Hidden) {
        true => Err(format!("{} = \"muon\": the model trains no matrix of a hidden layer", Optim::kind)),
        false => Ok(()),
    }
}
