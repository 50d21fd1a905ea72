//! Checks of the keys of `[optim]` with each other.

use keys::{Error, RawValues};

use crate::choices::{OptimKind, StateType};
use crate::run_config::RunConfig;
use crate::sections::Optim;

/// Names of the groups of parameters that no group of `optim.groups` has.
const DEFAULTS: [&str; 4] =
    [Optim::DEFAULT_GROUP, Optim::MATRICES_GROUP, Optim::UNDECAYED_GROUP, Optim::LORA_GROUP];

/// Refuses a minimum rate above the maximum, 8-bit state of a rule without state, and groups that contradict
/// each other.
pub(crate) fn check_optim(raw: &RawValues, config: &RunConfig) -> Result<(), Error> {
    let optim = &config.optim;
    if optim.min_learning_rate > optim.learning_rate {
        let reason = format!(
            "optim.min_learning_rate = {} is above optim.learning_rate = {}",
            optim.min_learning_rate, optim.learning_rate
        );
        return Err(raw.conflict(&[Optim::min_learning_rate, Optim::learning_rate], reason));
    }
    let kinds = optim.groups.iter().map(|group| group.kind_or(optim.kind));
    let has_sgd = kinds.chain([optim.kind]).any(|kind| kind == OptimKind::Sgd);
    if optim.state == StateType::EightBit && has_sgd && optim.momentum == 0.0 {
        let reason = "optim.state = \"8bit\" is for moments or velocity, and SGD with optim.momentum = 0 \
                      keeps none"
            .to_owned();
        return Err(raw.conflict(&[Optim::state, Optim::momentum], reason));
    }
    if optim.muon_coefficients.len() != 3 {
        let count = optim.muon_coefficients.len();
        let reason = format!("{} has {count} numbers and needs 3: a, b and c", Optim::muon_coefficients);
        return Err(raw.conflict(&[Optim::muon_coefficients], reason));
    }
    check_groups(raw, optim)
}

/// Refuses groups of one name, and decay rates of a rule that has none.
fn check_groups(raw: &RawValues, optim: &Optim) -> Result<(), Error> {
    for (index, group) in optim.groups.iter().enumerate() {
        let refuse = |reason: String| {
            let reason = format!("{}: group {}: {reason}", Optim::groups, index + 1);
            Err(raw.conflict(&[Optim::groups], reason))
        };
        let name = group.name();
        let before = optim.groups[..index].iter().position(|other| other.name() == name);
        if let Some(before) = before {
            return refuse(format!("it is called \"{name}\" as group {} is: set its name", before + 1));
        }
        if DEFAULTS.contains(&name) {
            return refuse(format!("\"{name}\" is the name of a group that every run may have: use another"));
        }
        let kind = group.kind_or(optim.kind);
        let betas = [("beta1", group.beta1), ("beta2", group.beta2)];
        // Beside Muon, AdamW has them.
        let has_betas = kind.has_betas() || group.kind.is_none() && kind == OptimKind::Muon;
        if let Some((key, _)) = betas.iter().find(|(_, beta)| beta.is_some() && !has_betas) {
            return refuse(format!("{key} has no use with kind = \"{}\"", kind.name()));
        }
    }
    Ok(())
}
