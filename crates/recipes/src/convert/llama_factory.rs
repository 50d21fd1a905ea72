//! Conversion rules for LLaMA-Factory's keys.

use config::{Data, DataKind, LoraSection, Memory, Optim, Preference, Train};
use serde_json::Value;

use super::arguments::{is_off, parse, shown, texts};
use super::converter::{Converter, Outcome, Rule, none, not_a, not_needed, switch};
use super::defaults::ForeignDefault;
use super::{adapters, datasets, preferences, shared};

/// File name of the list of data sets, in their folder.
const LIST: &str = "dataset_info.json";
/// Maximum size of the list in bytes.
const MOST_BYTES: u64 = 16 << 20;

/// Conversion rules by key.
pub(super) const RULES: &[(&str, Rule)] = &[
    ("stage", stage),
    ("finetuning_type", tuning),
    ("dataset", |converter, value| named(converter, Data::paths, value)),
    ("eval_dataset", |converter, value| named(converter, Data::validation_paths, value)),
    ("dataset_dir", |_, _| not_needed("data.paths names the files")),
    ("template", template),
    ("train_on_prompt", datasets::learn_all),
    ("cutoff_len", shared::context),
    ("lora_rank", adapters::rank),
    ("lora_target", adapters::targets),
    ("quantization_bit", adapters::bits),
    ("quantization_method", |_, value| match shown(value).as_str() {
        "bitsandbytes" | "bnb" => not_needed("lora.base has bitsandbytes' format"),
        _ => none("use lora.base = \"nf4\", \"int4\" or \"fp8\""),
    }),
    ("quantization_type", adapters::quantisation),
    ("double_quantization", |_, _| not_needed("scales of lora.base are always quantised")),
    ("pref_beta", preferences::beta),
    ("pref_loss", preferences::loss),
    ("dpo_label_smoothing", preferences::smoothing),
    ("val_size", shared::validation_part),
    ("neat_packing", shared::packing),
    ("overwrite_cache", |_, _| not_needed("tokens that are kept are found by the contents of the files")),
    ("disable_gradient_checkpointing", |_, value| {
        switch(value, || not_needed("memory.recompute is \"none\" unless it is set"))
    }),
    ("upcast_layernorm", |_, _| not_needed("norms compute in f32")),
    ("flash_attn", |converter, value| converter.by_table("flash_attn", value)),
];

/// LLaMA-Factory's defaults for absent keys.
pub(super) const DEFAULTS: &[ForeignDefault] = &[
    ForeignDefault::number(Optim::learning_rate, 5e-5, &["learning_rate"]),
    ForeignDefault::number(Train::epochs, 3.0, &["num_train_epochs", "max_steps"]),
    ForeignDefault::text(Optim::schedule, "linear", &["lr_scheduler_type"]),
    ForeignDefault::count(Train::seed, 42, &["seed"]),
    ForeignDefault::count("model.context", 2048, &["cutoff_len"]),
    ForeignDefault::text(
        Memory::recompute,
        "block",
        &["disable_gradient_checkpointing", "gradient_checkpointing"],
    ),
];
/// Defaults for adapters.
pub(super) const ADAPTER_DEFAULTS: &[ForeignDefault] =
    &[ForeignDefault::count(LoraSection::rank, 8, &["lora_rank"])];

/// Detects the kind of data, and whether the run trains adapters.
pub(super) fn begin(converter: &mut Converter<'_>) {
    let tuning = converter.argument("finetuning_type").map_or_else(|| "lora".to_owned(), shown);
    converter.has_adapters = tuning == "lora";
    let stage = converter.argument("stage").map_or_else(|| "sft".to_owned(), shown);
    converter.kind = match stage.as_str() {
        "sft" => Some(DataKind::Chat),
        "dpo" => Some(DataKind::Preference),
        "pt" => Some(DataKind::Text),
        _ => None,
    };
    if let Some(kind) = converter.kind {
        datasets::set_kind(converter, kind);
    }
    if converter.kind == Some(DataKind::Preference) {
        converter.document.set(Preference::loss, "dpo", "");
    }
}

/// Sets alpha to LLaMA-Factory's default, twice the rank, unless specified. Returns the assignment.
pub(super) fn set_alpha(converter: &mut Converter<'_>) -> Option<String> {
    let rank = converter.count_of(&["lora_rank"]).unwrap_or(8);
    if !converter.has_adapters || converter.argument("lora_alpha").is_some() {
        return None;
    }
    converter.document.set(LoraSection::alpha, 2.0 * rank as f64, "LLaMA-Factory's default");
    Some(converter.document.assignment(LoraSection::alpha))
}

fn stage(converter: &mut Converter<'_>, value: &Value) -> Outcome {
    match converter.kind {
        Some(_) => Outcome::Converted(converter.document.assignment(Data::kind)),
        None => none(format!(
            "{} is not built: use \"chat\", \"preference\" or \"text\" as data.kind",
            shown(value)
        )),
    }
}

fn tuning(_: &mut Converter<'_>, value: &Value) -> Outcome {
    match shown(value).as_str() {
        "lora" => not_needed("lora.rank makes adapters"),
        "full" => not_needed("without lora.rank all parameters are trained"),
        "freeze" => none("use train.freeze, the globs of the parameters that are not trained"),
        _ => none("use lora.rank for adapters"),
    }
}

fn template(_: &mut Converter<'_>, value: &Value) -> Outcome {
    none(format!(
        "{} is a template inside of LLaMA-Factory: the tokenizer's is used, and data.chat_template names a \
         file",
        shown(value)
    ))
}

/// Adds the files of named data sets, which are described in the list of data sets.
fn named(converter: &mut Converter<'_>, key: &'static str, value: &Value) -> Outcome {
    let Some(names) = texts(value) else { return not_a("name", value) };
    let folder = converter.argument("dataset_dir").map_or_else(|| "data".to_owned(), shown);
    let list = converter.directories.current().join(&folder).join(LIST);
    let list = system::input::read_text(&list, MOST_BYTES).ok().and_then(|text| parse(&text, LIST).ok());
    for name in &names {
        let entry = list.as_ref().and_then(|list| list.get(name));
        let file = entry.and_then(|entry| entry.get("file_name")).filter(|file| !is_off(file)).map(shown);
        let hub = entry.and_then(|entry| entry.get("hf_hub_url")).filter(|url| !is_off(url)).map(shown);
        let path = match (file, hub) {
            (Some(file), _) => format!("{folder}/{file}"),
            (None, Some(hub)) => hub,
            (None, None) => {
                converter.notes.push(format!("{name}: {folder}/{LIST} does not name its file: set {key}"));
                format!("{folder}/{name}.json")
            }
        };
        datasets::add_paths(converter, key, &path);
    }
    Outcome::Converted(converter.document.assignment(key))
}
