//! Conversion rules for axolotl's keys.

use config::{Data, DataKind, Optim, Preference, Train};
use serde_json::{Map, Value};

use super::arguments::{is_off, shown};
use super::converter::{Converter, Outcome, Rule, none, not_needed};
use super::defaults::ForeignDefault;
use super::{adapters, datasets, preferences, shared};

/// Conversion rules by key.
pub(super) const RULES: &[(&str, Rule)] = &[
    ("base_model", shared::model),
    ("base_model_config", |_, _| not_needed("sizes come from the folder of model.from")),
    ("model_type", |_, _| not_needed("the family follows from config.json")),
    ("tokenizer_type", |_, _| not_needed("the tokenizer is the folder's tokenizer.json")),
    ("tokenizer_config", |_, value| none(format!("name the folder of {} in data.tokenizer", shown(value)))),
    ("is_llama_derived_model", |_, _| not_needed("the family follows from config.json")),
    ("is_mistral_derived_model", |_, _| not_needed("the family follows from config.json")),
    ("adapter", adapter),
    ("lora_r", adapters::rank),
    ("lora_target_modules", adapters::targets),
    ("lora_target_linear", adapters::all_linear),
    ("datasets", |converter, value| of_list(converter, "datasets", Data::paths, value)),
    ("test_datasets", |converter, value| of_list(converter, "test_datasets", Data::validation_paths, value)),
    ("dataset_prepared_path", |_, _| {
        not_needed("tokens are kept beside the run directory where that saves time")
    }),
    ("val_set_size", shared::validation_part),
    ("train_on_inputs", datasets::learn_all),
    ("peft_use_rslora", adapters::rank_stabilised),
    ("sequence_len", shared::context),
    ("sample_packing", shared::packing),
    ("eval_sample_packing", |_, _| not_needed("validations are packed as training is")),
    ("micro_batch_size", shared::batch),
    ("num_epochs", shared::epochs),
    ("optimizer", shared::optimizer),
    ("lr_scheduler", shared::schedule),
    ("cosine_min_lr_ratio", shared::lowest_rate_ratio),
    ("bfloat16", |converter, value| shared::half(converter, value, "bf16")),
    ("float16", |converter, value| shared::half(converter, value, "f16")),
    ("rl", preferences::loss),
    ("rl_beta", preferences::beta),
    ("dpo_beta", preferences::beta),
    ("orpo_alpha", preferences::beta),
    ("chat_template", chat_template),
    ("chat_template_jinja", |_, _| none("write it to a file, and name that in data.chat_template")),
    ("strict", |_, _| not_needed("unknown keys are always refused")),
];

/// Axolotl's defaults for absent keys.
pub(super) const DEFAULTS: &[ForeignDefault] = &[
    ForeignDefault::number(Train::epochs, 1.0, &["num_epochs", "max_steps"]),
    ForeignDefault::text(Optim::schedule, "cosine", &["lr_scheduler"]),
    ForeignDefault::number(
        Optim::min_learning_rate,
        0.0,
        &["lr_scheduler", "cosine_min_lr_ratio", "lr_scheduler_kwargs"],
    ),
    ForeignDefault::count(Train::seed, 42, &["seed"]),
];

/// Detects the kind of data, and whether the run trains adapters.
pub(super) fn begin(converter: &mut Converter<'_>) {
    converter.has_adapters = converter.argument("adapter").is_some();
    if converter.argument("rl").is_some() {
        converter.kind = Some(DataKind::Preference);
        datasets::set_kind(converter, DataKind::Preference);
        converter.document.set(Preference::loss, "dpo", "");
    }
}

fn adapter(converter: &mut Converter<'_>, value: &Value) -> Outcome {
    match shown(value).as_str() {
        "lora" => not_needed("lora.rank makes adapters"),
        "qlora" => adapters::nf4(converter),
        _ => none("adapters are those of LoRA: use lora.rank"),
    }
}

fn chat_template(_: &mut Converter<'_>, value: &Value) -> Outcome {
    match shown(value).as_str() {
        "tokenizer_default" => not_needed("the chat template is the tokenizer's"),
        name => none(format!(
            "{name} is a template inside of axolotl: the tokenizer's is used, and data.chat_template names a \
             file"
        )),
    }
}

/// Converts the entries of a list of data sets.
fn of_list(converter: &mut Converter<'_>, list: &str, key: &'static str, value: &Value) -> Outcome {
    let Value::Array(entries) = value else { return datasets::paths(converter, key, value) };
    for (index, entry) in entries.iter().enumerate() {
        match entry {
            Value::Object(entry) => of_entry(converter, &format!("{list}[{index}]"), key, entry),
            other => {
                let outcome = datasets::paths(converter, key, other);
                converter.add(format!("{list}[{index}]"), other, outcome);
            }
        }
    }
    Outcome::Converted(converter.document.assignment(key))
}

fn of_entry(converter: &mut Converter<'_>, name: &str, key: &'static str, entry: &Map<String, Value>) {
    // Files of a data set are more specific than its name.
    let files = entry.get("data_files").filter(|files| !is_off(files));
    for (argument, value) in entry.iter().filter(|(_, value)| !is_off(value)) {
        let outcome = match (argument.as_str(), files) {
            ("path", None) | ("data_files", _) => datasets::paths(converter, key, value),
            ("path", Some(_)) => not_needed("data_files names the files"),
            ("ds_type", _) => not_needed("the kind of a file follows from its name and contents"),
            ("type", _) => data_type(converter, value),
            ("split", _) if shown(value) == "train" => not_needed("all of a file is read"),
            ("split", _) => none("name the files of the split in data.paths"),
            ("field_messages", _) if matches!(shown(value).as_str(), "messages" | "conversations") => {
                not_needed("the key is found")
            }
            ("chat_template", _) => chat_template(converter, value),
            ("roles_to_train", _) => datasets::learn_roles(converter, value),
            _ => none("objects have the keys of data.format, and no setting renames them"),
        };
        converter.add(format!("{name}.{argument}"), value, outcome);
    }
}

/// Converts the type of a data set.
fn data_type(converter: &mut Converter<'_>, value: &Value) -> Outcome {
    let name = shown(value);
    let is_preference = converter.kind == Some(DataKind::Preference);
    match name.as_str() {
        _ if is_preference && value.is_string() => not_needed("pairs of answers have the keys of TRL"),
        "alpaca" => datasets::set_format(converter, "alpaca_prompt"),
        "completion" => {
            let sentence = "texts in JSON lines become token shards by `plimsoll tokenize --text-key`";
            converter.notes.push(sentence.to_owned());
            datasets::set_kind(converter, DataKind::Text)
        }
        _ if name == "chat_template" || name.starts_with("chat_template.") => {
            datasets::set_kind(converter, DataKind::Chat)
        }
        _ if name == "sharegpt" || name.starts_with("sharegpt.") => {
            datasets::set_format(converter, "sharegpt")
        }
        _ => none(
            "use data.format: \"messages\", \"sharegpt\", \"alpaca\", \"alpaca_prompt\" or \"completion\"",
        ),
    }
}
