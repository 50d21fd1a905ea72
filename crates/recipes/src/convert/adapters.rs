//! Converts keys of adapters, and of how their frozen base weights are stored.

use config::LoraSection;
use serde_json::Value;

use super::arguments::{shown, texts};
use super::converter::{Converter, Outcome, none, not_a, not_needed, switch};

const UNUSED: &str = "the run has no adapters";

/// Converts the rank of adapters.
pub(super) fn rank(converter: &mut Converter<'_>, value: &Value) -> Outcome {
    match converter.has_adapters {
        true => converter.set_count(LoraSection::rank, value, "rank of the adapters"),
        false => not_needed(UNUSED),
    }
}

/// Converts alpha, the adapters' scale times their rank.
pub(super) fn alpha(converter: &mut Converter<'_>, value: &Value) -> Outcome {
    match converter.has_adapters {
        true => converter.set_number(LoraSection::alpha, value, "their factor is alpha / rank"),
        false => not_needed(UNUSED),
    }
}

/// Converts the dropout probability.
pub(super) fn dropout(converter: &mut Converter<'_>, value: &Value) -> Outcome {
    match converter.has_adapters {
        true => converter.set_number(LoraSection::dropout, value, ""),
        false => not_needed(UNUSED),
    }
}

/// Converts the names of layers that get adapters.
pub(super) fn targets(converter: &mut Converter<'_>, value: &Value) -> Outcome {
    if !converter.has_adapters {
        return not_needed(UNUSED);
    }
    let Some(names) = texts(value) else { return not_a("list of names", value) };
    let is_all = names.iter().any(|name| name == "all" || name == "all-linear");
    match is_all {
        true => converter.set(LoraSection::targets, "all-linear", "layers with an adapter"),
        false => converter.set(LoraSection::targets, names.as_slice(), "layers with an adapter"),
    }
}

/// Converts the switch that adds adapters to all linear layers.
pub(super) fn all_linear(converter: &mut Converter<'_>, value: &Value) -> Outcome {
    if !converter.has_adapters {
        return not_needed(UNUSED);
    }
    switch(value, || converter.set(LoraSection::targets, "all-linear", "layers with an adapter"))
}

/// Converts the switch for rank-stabilised LoRA.
pub(super) fn rank_stabilised(converter: &mut Converter<'_>, value: &Value) -> Outcome {
    switch(value, || converter.set(LoraSection::scaling, "rslora", "their factor is alpha / √rank"))
}

/// Converts the switch for 4-bit base weights.
pub(super) fn four_bits(converter: &mut Converter<'_>, value: &Value) -> Outcome {
    switch(value, || nf4(converter))
}

/// Stores the base weights in 4 bits.
pub(super) fn nf4(converter: &mut Converter<'_>) -> Outcome {
    match converter.has_adapters {
        true => converter.set(LoraSection::base, "nf4", "the frozen matrices are in 4 bits"),
        false => none("weights in 4 bits are for adapters, and the run has none"),
    }
}

/// Reports that 8-bit base weights (LLM.int8) are not supported.
pub(super) fn eight_bits(_: &mut Converter<'_>, _: &Value) -> Outcome {
    none("LLM.int8 is not built: lora.base = \"fp8\" has 8 bits of another format, and \"nf4\" has 4")
}

/// Converts the number of bits of base weights.
pub(super) fn bits(converter: &mut Converter<'_>, value: &Value) -> Outcome {
    match shown(value).as_str() {
        "4" => nf4(converter),
        "8" => eight_bits(converter, value),
        _ => none("use lora.base = \"nf4\", \"int4\" or \"fp8\""),
    }
}

/// Converts the format of 4-bit base weights.
pub(super) fn quantisation(_: &mut Converter<'_>, value: &Value) -> Outcome {
    match shown(value).as_str() {
        "nf4" => not_needed("lora.base = \"nf4\" has this format"),
        _ => none("use lora.base = \"nf4\" or \"int4\""),
    }
}
