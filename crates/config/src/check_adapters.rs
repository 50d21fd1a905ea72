//! Checks of adapters with other keys.

use device::DType;
use keys::{Error, RawValues};
use nn::LoraScaling;

use crate::choices::LoraBase;
use crate::run_config::RunConfig;
use crate::sections::{LoraSection, Precision};

/// Refuses adapter settings without a rank. Setting the rank to 0 turns adapters off and is accepted.
pub(crate) fn check_adapters(raw: &RawValues, config: &RunConfig) -> Result<(), Error> {
    let LoraSection { rank, alpha, dropout, targets, base, .. } = &config.lora;
    let LoraSection { scaling, rank_pattern, alpha_pattern, b_learning_rate, train_also, .. } = &config.lora;
    if *rank > 0 {
        return check_base(raw, config);
    }
    if raw.is_set(LoraSection::rank) {
        return Ok(());
    }
    let set = [
        (LoraSection::alpha, *alpha != 0.0),
        (LoraSection::dropout, *dropout != 0.0),
        (LoraSection::targets, targets != &["all-linear"]),
        (LoraSection::base, *base != LoraBase::Compute),
        (LoraSection::scaling, *scaling != LoraScaling::Rank),
        (LoraSection::rank_pattern, !rank_pattern.is_empty()),
        (LoraSection::alpha_pattern, !alpha_pattern.is_empty()),
        (LoraSection::train_also, !train_also.is_empty()),
        (LoraSection::b_learning_rate, *b_learning_rate != 1.0),
    ];
    let Some((key, _)) = set.into_iter().find(|(_, is_set)| *is_set) else { return Ok(()) };
    let reason = format!("{key} is for adapters, and there are none without lora.rank: set lora.rank");
    Err(raw.conflict(&[key], reason))
}

/// Checks that frozen matrices stored in another type can be cast to the compute type.
fn check_base(raw: &RawValues, config: &RunConfig) -> Result<(), Error> {
    let compute = config.precision.compute;
    match config.lora.base.dtype() {
        Some(dtype) if compute != DType::F32 && compute != dtype => {
            let reason = format!(
                "lora.base = \"{dtype}\" and precision.compute = \"{compute}\" are different half types: use \
                 lora.base = \"compute\""
            );
            Err(raw.conflict(&[LoraSection::base, Precision::compute], reason))
        }
        _ => Ok(()),
    }
}
