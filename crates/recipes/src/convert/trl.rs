//! Conversion rules for keys of TRL's configurations and Hugging Face's Trainer.

use config::{Data, DataKind, LoraSection, Optim, Preference, Train};
use keys::Value as Setting;
use serde_json::Value;

use super::arguments::{is_off, shown};
use super::converter::{Converter, Outcome, Rule, none, not_needed};
use super::defaults::ForeignDefault;
use super::{adapters, datasets, preferences, shared};

/// Keys that occur only in configurations for preference pairs.
const OF_PAIRS: [&str; 8] = [
    "beta",
    "max_prompt_length",
    "precompute_ref_log_probs",
    "reference_free",
    "ref_model_init_kwargs",
    "rpo_alpha",
    "f_divergence_type",
    "sync_ref_model",
];
/// Losses for preference pairs.
const LOSSES: [&str; 4] = ["sigmoid", "ipo", "orpo", "hinge"];

/// Conversion rules by key.
pub(super) const RULES: &[(&str, Rule)] = &[
    ("dataset_name", |converter, value| datasets::paths(converter, Data::paths, value)),
    ("datasets", of_list),
    ("dataset_train_split", split),
    ("dataset_test_split", |_, _| none("data.validation_paths names files, and else a part is held out")),
    ("max_length", shared::context),
    ("max_seq_length", shared::context),
    ("packing_strategy", |_, _| not_needed("whole documents are packed, whatever the strategy")),
    ("assistant_only_loss", |_, _| not_needed("data.train_on = \"answers\" is the default")),
    ("completion_only_loss", |_, _| not_needed("data.train_on = \"answers\" is the default")),
    ("use_peft", |_, _| not_needed("lora.rank makes adapters")),
    ("lora_r", adapters::rank),
    ("lora_target_modules", adapters::targets),
    ("beta", preferences::beta),
    ("loss_type", loss),
    ("label_smoothing", preferences::smoothing),
    ("pad_token", |_, _| not_needed("special tokens are the tokenizer's")),
    ("eos_token", |_, _| not_needed("special tokens are the tokenizer's")),
];

/// TRL's defaults for absent keys.
pub(super) const DEFAULTS: &[ForeignDefault] = &[
    ForeignDefault::number(Train::epochs, 3.0, &["num_train_epochs", "max_steps"]),
    ForeignDefault::text(Optim::schedule, "linear", &["lr_scheduler_type"]),
    ForeignDefault::count(Train::seed, 42, &["seed"]),
    ForeignDefault::count("model.context", 1024, &["max_length", "max_seq_length"]),
];
/// Defaults for adapters.
pub(super) const ADAPTER_DEFAULTS: &[ForeignDefault] = &[
    ForeignDefault::count(LoraSection::rank, 16, &["lora_r"]),
    ForeignDefault::number(LoraSection::alpha, 32.0, &["lora_alpha"]),
    ForeignDefault::number(LoraSection::dropout, 0.05, &["lora_dropout"]),
];
/// Default learning rate for conversations and text.
pub(super) const RATE: &[ForeignDefault] =
    &[ForeignDefault::number(Optim::learning_rate, 2e-5, &["learning_rate"])];
/// Default learning rate for preference pairs.
pub(super) const PAIR_RATE: &[ForeignDefault] =
    &[ForeignDefault::number(Optim::learning_rate, 1e-6, &["learning_rate"])];

/// Detects the kind of data, and whether the run trains adapters.
pub(super) fn begin(converter: &mut Converter<'_>) {
    let names_adapters = ["lora_r", "lora_alpha", "lora_target_modules", "load_in_4bit"];
    let uses_adapters = match converter.arguments.get("use_peft") {
        Some(value) => !is_off(value),
        None => names_adapters.iter().any(|key| converter.argument(key).is_some()),
    };
    converter.has_adapters = uses_adapters;
    let is_pair_loss =
        converter.argument("loss_type").is_some_and(|loss| LOSSES.contains(&shown(loss).as_str()));
    if is_pair_loss || OF_PAIRS.iter().any(|key| converter.argument(key).is_some()) {
        converter.kind = Some(DataKind::Preference);
        datasets::set_kind(converter, DataKind::Preference);
        converter.document.set(Preference::loss, "dpo", "");
    }
}

/// Sets TRL's default, to learn all of a conversation. Returns the assignment.
pub(super) fn set_train_on(converter: &mut Converter<'_>) -> Option<String> {
    let is_chat = converter.document.get(Data::kind) == Some(&Setting::from(DataKind::Chat.name()));
    let is_decided = ["assistant_only_loss", "completion_only_loss"]
        .iter()
        .any(|key| converter.arguments.get(*key).is_some_and(|value| !is_off(value)));
    if !is_chat || is_decided {
        return None;
    }
    converter.document.set(Data::train_on, "all", "TRL's default: every token is learnt");
    Some(converter.document.assignment(Data::train_on))
}

fn loss(converter: &mut Converter<'_>, value: &Value) -> Outcome {
    match (shown(value).as_str(), converter.kind) {
        ("nll", _) => not_needed("it is the loss of conversations and texts"),
        (_, Some(DataKind::Preference)) => preferences::loss(converter, value),
        _ => none("the loss of conversations and texts is the cross-entropy"),
    }
}

fn split(_: &mut Converter<'_>, value: &Value) -> Outcome {
    match shown(value).as_str() {
        "train" => not_needed("data.paths names the files"),
        _ => none("name the files of the split in data.paths"),
    }
}

/// Converts the data sets of a mixture.
fn of_list(converter: &mut Converter<'_>, value: &Value) -> Outcome {
    let Value::Array(entries) = value else { return none("data.paths names files") };
    for (index, entry) in entries.iter().enumerate() {
        for (argument, value) in entry.as_object().into_iter().flatten().filter(|(_, value)| !is_off(value)) {
            let outcome = match argument.as_str() {
                "path" | "data_files" => datasets::paths(converter, Data::paths, value),
                "split" => split(converter, value),
                _ => none("data.paths names files"),
            };
            converter.add(format!("datasets[{index}].{argument}"), value, outcome);
        }
    }
    Outcome::Converted(converter.document.assignment(Data::paths))
}
