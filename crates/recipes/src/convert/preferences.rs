//! Converts keys of preference losses.

use config::{DataKind, Preference};
use serde_json::Value;

use super::arguments::{number, shown};
use super::converter::{Converter, Outcome, none, not_a};

/// Converts the name of a loss; TRL also accepts a list.
pub(super) fn loss(converter: &mut Converter<'_>, value: &Value) -> Outcome {
    let name = match value {
        Value::Array(list) if list.len() == 1 => shown(&list[0]),
        other => shown(other),
    };
    match name.as_str() {
        "dpo" | "sigmoid" => converter.set(Preference::loss, "dpo", ""),
        "ipo" => converter.set(Preference::loss, "ipo", ""),
        "orpo" => converter.set(Preference::loss, "orpo", ""),
        _ => none("use preference.loss = \"dpo\", \"ipo\" or \"orpo\""),
    }
}

/// Converts β; for ORPO it is λ here.
pub(super) fn beta(converter: &mut Converter<'_>, value: &Value) -> Outcome {
    if converter.kind != Some(DataKind::Preference) {
        return none("it belongs to pairs of answers, and the data has none");
    }
    let losses = ["rl", "pref_loss", "loss_type"];
    let is_orpo = losses.iter().any(|key| converter.argument(key).is_some_and(|loss| shown(loss) == "orpo"));
    let (key, comment) = match is_orpo {
        true => (Preference::lambda, "factor of the loss of odds"),
        false => (Preference::beta, "larger: the model stays nearer to its start"),
    };
    converter.set_number(key, value, comment)
}

/// Converts the probability that a preference is reversed.
pub(super) fn smoothing(converter: &mut Converter<'_>, value: &Value) -> Outcome {
    match number(value) {
        Some(0.0) => converter.set(Preference::label_smoothing, 0.0, ""),
        Some(part) => converter.set(Preference::label_smoothing, part, ""),
        None => not_a("number", value),
    }
}
