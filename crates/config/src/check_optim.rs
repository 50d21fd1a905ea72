//! Checks of the keys of `[optim]` with each other.

use keys::{Error, RawValues};

use crate::choices::{OptimKind, StateType};
use crate::run_config::RunConfig;
use crate::sections::{LoraSection, ModelSection, Optim};

/// Names of the default parameter groups, for parameters outside `optim.groups`.
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
    check_groups(raw, optim)?;
    check_widths(raw, config)
}

/// Refuses two groups with one name, and decay rates for a rule without them.
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

/// Refuses scaling by width for models, optimizers and adapters without scaling rules.
fn check_widths(raw: &RawValues, config: &RunConfig) -> Result<(), Error> {
    const BASE_WIDTH: &str = "model.base_width";
    if config.model.width_scaling().is_none() {
        return Ok(());
    }
    let groups = config.optim.groups.iter().map(|group| group.kind_or(config.optim.kind));
    let mut kinds = groups.chain([config.optim.kind]);
    let other = kinds.find(|kind| !matches!(kind, OptimKind::AdamW | OptimKind::Lion));
    let (key, reason) = if let Some(other) = other {
        let reason = format!(
            "{BASE_WIDTH} scales the rates of \"adamw\" and \"lion\", and has no rules for \"{}\"",
            other.name()
        );
        return Err(raw.conflict(&[Optim::kind, BASE_WIDTH], reason));
    } else if config.lora.rank > 0 {
        (LoraSection::rank, "is for whole models, and lora.rank trains adapters")
    } else if config.model.weights().is_some() {
        (ModelSection::from, "is for models that are trained from the start, and model.from has weights")
    } else {
        return Ok(());
    };
    Err(raw.conflict(&[key, BASE_WIDTH], format!("{BASE_WIDTH} {reason}")))
}
