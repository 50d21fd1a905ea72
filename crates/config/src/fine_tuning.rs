//! Defaults for fine-tuning, which starts a language model from the weights of a folder.
//!
//! They follow published recipes: the learning rates of Alpaca and QLoRA, the epochs and decay of TRL and
//! LLaMA-Factory.

use keys::{Error, RawValues};

use crate::choices::DataKind;
use crate::sections::{Data, ModelSection};

/// Returns whether a language model starts from the weights of a folder.
pub(crate) fn is_fine_tuning(raw: &RawValues) -> Result<bool, Error> {
    let is_of_tokens = !has_kind(raw, DataKind::Images)? && !has_kind(raw, DataKind::Synthetic)?;
    Ok(is_of_tokens && !raw.is_empty(ModelSection::from) && !raw.flag(ModelSection::from_config)?)
}

/// Returns whether the configured data has this kind.
pub(crate) fn has_kind(raw: &RawValues, kind: DataKind) -> Result<bool, Error> {
    Ok(raw.text(Data::kind)? == kind.name())
}

/// Returns the configured number at `key`, or its default: `tuned` in fine-tuning, otherwise `other`.
pub(crate) fn number(raw: &RawValues, key: &str, tuned: f64, other: f64) -> Result<f64, Error> {
    match raw.is_set(key) {
        true => raw.number(key),
        false => Ok(if is_fine_tuning(raw)? { tuned } else { other }),
    }
}

/// Returns the configured integer at `key`, or its default: `tuned` in fine-tuning, otherwise `other`.
pub(crate) fn integer(raw: &RawValues, key: &str, tuned: u64, other: u64) -> Result<u64, Error> {
    match raw.is_set(key) {
        true => raw.integer(key),
        false => Ok(if is_fine_tuning(raw)? { tuned } else { other }),
    }
}
