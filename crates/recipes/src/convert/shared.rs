//! Conversion rules for keys of Hugging Face's Trainer, which axolotl, TRL and LLaMA-Factory share.

use config::{Checkpoint, Data, Memory, Optim, Precision, Telemetry, Train};
use serde_json::Value;

use super::adapters;
use super::arguments::{count, is_on, number, shown};
use super::converter::{Converter, Outcome, Rule, none, not_a, not_needed, switch};
use super::program::Program;
use super::sharding;

/// Names of the key for the batch size per device.
const MICRO_BATCH: [&str; 2] = ["per_device_train_batch_size", "micro_batch_size"];
/// Comment on the warm-up steps.
const WARMUP: &str = "steps in which the rate rises";

/// Conversion rules by key.
pub(super) const RULES: &[(&str, Rule)] = &[
    ("per_device_train_batch_size", batch),
    ("gradient_accumulation_steps", batch),
    ("max_steps", |converter, value| match number(value) {
        Some(steps) if steps < 1.0 => not_needed("without steps the epochs decide"),
        _ => converter.set_count(Train::steps, value, "optimizer steps"),
    }),
    ("num_train_epochs", epochs),
    ("seed", |converter, value| converter.set_count(Train::seed, value, "")),
    ("learning_rate", |converter, value| converter.set_number(Optim::learning_rate, value, "highest rate")),
    ("weight_decay", |converter, value| converter.set_number(Optim::weight_decay, value, "")),
    ("max_grad_norm", |converter, value| converter.set_number(Optim::clip_norm, value, "")),
    ("neftune_noise_alpha", |converter, value| {
        converter.set_number(Train::neftune_alpha, value, "noise on embeddings")
    }),
    ("warmup_steps", |converter, value| match number(value) {
        Some(part) if part > 0.0 && part < 1.0 => warmup_ratio(converter, value),
        _ => converter.set_count(Optim::warmup_steps, value, WARMUP),
    }),
    ("warmup_ratio", warmup_ratio),
    ("lr_scheduler_type", schedule),
    ("lr_scheduler_kwargs", schedule_settings),
    ("optim", optimizer),
    ("bf16", |converter, value| half(converter, value, "bf16")),
    ("fp16", |converter, value| half(converter, value, "f16")),
    ("tf32", |converter, value| {
        switch(value, || converter.set(Precision::tf32, true, "matmuls of f32 round to TF32"))
    }),
    ("torch_dtype", dtype),
    ("dtype", dtype),
    ("bnb_4bit_compute_dtype", dtype),
    ("gradient_checkpointing", recompute),
    ("gradient_checkpointing_kwargs", |_, _| not_needed("memory.recompute decides what is recomputed")),
    ("packing", packing),
    ("group_by_length", group_by_length),
    ("eval_packing", |_, _| not_needed("validations are packed as training is")),
    ("save_steps", |converter, value| {
        whole_steps(converter, Checkpoint::every, value, "steps between checkpoints")
    }),
    ("eval_steps", |converter, value| {
        whole_steps(converter, Train::validate_every, value, "steps between validations")
    }),
    ("logging_steps", |converter, value| {
        whole_steps(converter, Telemetry::every, value, "steps between lines of progress")
    }),
    ("save_strategy", |converter, value| strategy(converter, "save_strategy", value)),
    ("eval_strategy", |converter, value| strategy(converter, "eval_strategy", value)),
    ("evaluation_strategy", |converter, value| strategy(converter, "evaluation_strategy", value)),
    ("logging_strategy", |converter, value| strategy(converter, "logging_strategy", value)),
    ("report_to", |converter, value| match shown(value).contains("tensorboard") {
        true => converter.set(Telemetry::tensorboard, true, ""),
        false => converter.by_table("report_to", value),
    }),
    ("dataloader_num_workers", |converter, value| match count(value) {
        Some(0) => not_needed("data.prefetch has a default that reads ahead"),
        _ => converter.set_count(Data::prefetch, value, "micro-batches read ahead"),
    }),
    ("model_name_or_path", model),
    ("deepspeed", sharding::deepspeed),
    ("fsdp", sharding::fsdp),
    ("fsdp_config", sharding::fsdp_settings),
    ("lora_alpha", adapters::alpha),
    ("lora_dropout", adapters::dropout),
    ("use_rslora", adapters::rank_stabilised),
    ("load_in_4bit", adapters::four_bits),
    ("load_in_8bit", adapters::eight_bits),
    ("bnb_4bit_quant_type", adapters::quantisation),
];

/// Converts the batch size per device and the accumulation steps; both keys have this rule.
pub(super) fn batch(converter: &mut Converter<'_>, _: &Value) -> Outcome {
    let default = if converter.program == Program::Axolotl { 1 } else { 8 };
    let micro = converter.count_of(&MICRO_BATCH).unwrap_or(default).max(1);
    let steps = converter.count_of(&["gradient_accumulation_steps"]).unwrap_or(1).max(1);
    let first = converter.set(Train::micro_batch_size, micro, "sequences or pairs in one pass");
    let comment = format!("sequences or pairs in a step: {micro} × {steps} for one device");
    let second = converter.set(Train::global_batch_size, micro.saturating_mul(steps), &comment);
    match (first, second) {
        (Outcome::Converted(micro), Outcome::Converted(global)) => {
            Outcome::Converted(format!("{micro}, {global}"))
        }
        (other, _) => other,
    }
}

/// Converts a number of epochs.
pub(super) fn epochs(converter: &mut Converter<'_>, value: &Value) -> Outcome {
    match converter.steps() {
        Some(_) => not_needed("max_steps takes precedence"),
        None => converter.set_number(Train::epochs, value, "passes over the data"),
    }
}

fn warmup_ratio(converter: &mut Converter<'_>, value: &Value) -> Outcome {
    match number(value) {
        Some(0.0) => converter.set(Optim::warmup_steps, 0_u64, WARMUP),
        _ => converter.set_number(Optim::warmup_ratio, value, "part of the steps in which the rate rises"),
    }
}

/// Converts the name of a learning-rate schedule.
pub(super) fn schedule(converter: &mut Converter<'_>, value: &Value) -> Outcome {
    let name = shown(value).to_ascii_lowercase();
    match name.as_str() {
        "cosine" => {
            converter.set(Optim::schedule, "cosine", "");
            if converter.document.get(Optim::min_learning_rate).is_none() {
                converter.set(Optim::min_learning_rate, 0.0, "rate at the end");
            }
            let keys = [Optim::schedule, Optim::min_learning_rate];
            Outcome::Converted(keys.map(|key| converter.document.assignment(key)).join(", "))
        }
        "cosine_with_min_lr" => converter.set(Optim::schedule, "cosine", ""),
        "linear" => converter.set(Optim::schedule, "linear", ""),
        "constant" | "constant_with_warmup" => converter.set(Optim::schedule, "constant", ""),
        "warmup_stable_decay" => converter.set(Optim::schedule, "wsd", ""),
        _ => none("use optim.schedule: \"cosine\", \"linear\", \"constant\", \"wsd\" or \"step\""),
    }
}

fn schedule_settings(converter: &mut Converter<'_>, value: &Value) -> Outcome {
    let entry = |key: &str| number(value.get(key)?);
    let rate = converter.argument("learning_rate").and_then(number);
    let lowest = entry("min_lr").or_else(|| Some(entry("min_lr_rate")? * rate?));
    match (lowest, value.as_object().map_or(0, serde_json::Map::len)) {
        (Some(lowest), 1) => converter.set(Optim::min_learning_rate, lowest, "rate at the end"),
        _ => converter.by_table("lr_scheduler_kwargs", value),
    }
}

/// Converts the final learning rate, expressed as a fraction of the highest.
pub(super) fn lowest_rate_ratio(converter: &mut Converter<'_>, value: &Value) -> Outcome {
    let rate = converter.argument("learning_rate").and_then(number);
    match (number(value), rate) {
        (Some(ratio), Some(rate)) => converter.set(Optim::min_learning_rate, ratio * rate, "rate at the end"),
        _ => converter.by_table("cosine_min_lr_ratio", value),
    }
}

/// Converts the name of an optimizer.
pub(super) fn optimizer(converter: &mut Converter<'_>, value: &Value) -> Outcome {
    let name = shown(value).to_ascii_lowercase();
    let plain = name.trim_start_matches("paged_");
    let kind = match plain {
        _ if plain.starts_with("adamw_torch_") && !plain.ends_with("fused") => None,
        _ if plain.starts_with("adamw_") => Some("adamw"),
        "adamw" => Some("adamw"),
        "lion" | "lion_32bit" | "lion_8bit" => Some("lion"),
        "sgd" => Some("sgd"),
        _ => None,
    };
    let Some(kind) = kind else {
        return none("use optim.kind: \"adamw\", \"lion\" or \"sgd\", and optim.state = \"8bit\" beside it");
    };
    converter.set(Optim::kind, kind, "");
    if plain.contains("8bit") {
        converter.set(Optim::state, "8bit", "moments take a quarter of the bytes");
    }
    let keys = [Optim::kind, Optim::state].map(|key| converter.document.assignment(key));
    let set = keys.into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join(", ");
    Outcome::Converted(set)
}

/// Converts a switch for half precision.
pub(super) fn half(converter: &mut Converter<'_>, value: &Value, name: &str) -> Outcome {
    let is_on = is_on(value) || matches!(shown(value).as_str(), "auto" | "full");
    match (is_on, converter.document.get(Precision::compute).is_some()) {
        (true, false) => converter.set(Precision::compute, name, "type of activations"),
        (true, true) => not_needed("another key has set precision.compute"),
        (false, _) => none("use precision.compute = \"bf16\" or \"f16\""),
    }
}

/// Converts the name of a dtype.
pub(super) fn dtype(converter: &mut Converter<'_>, value: &Value) -> Outcome {
    match shown(value).trim_start_matches("torch.") {
        "bfloat16" | "bf16" => half(converter, &Value::Bool(true), "bf16"),
        "float16" | "fp16" | "half" => half(converter, &Value::Bool(true), "f16"),
        "auto" | "float32" | "fp32" => not_needed("weights have the type of precision.compute"),
        _ => none("use precision.compute = \"f32\", \"bf16\" or \"f16\""),
    }
}

/// Converts the switch for recomputation.
pub(super) fn recompute(converter: &mut Converter<'_>, value: &Value) -> Outcome {
    switch(value, || converter.set(Memory::recompute, "block", "backward computes activations again"))
}

/// Converts the switch for packing.
pub(super) fn packing(converter: &mut Converter<'_>, value: &Value) -> Outcome {
    if !is_on(value) {
        return none(format!("{} is not known here", shown(value)));
    }
    if converter.kind == Some(config::DataKind::Preference) {
        return none("pairs of answers are not packed");
    }
    if converter.document.get(Data::group_by_length).is_some() {
        return none("group_by_length groups sequences that are not packed");
    }
    converter.set(Data::pack_documents, true, "whole documents fill a sequence");
    converter.set(Data::document_mask, true, "attention stays within a document");
    let keys = [Data::pack_documents, Data::document_mask];
    Outcome::Converted(keys.map(|key| converter.document.assignment(key)).join(", "))
}

/// Converts a switch that groups samples of similar lengths.
fn group_by_length(converter: &mut Converter<'_>, value: &Value) -> Outcome {
    match converter.document.get(Data::pack_documents) {
        Some(_) => not_needed("packed sequences have little padding"),
        None => switch(value, || converter.set(Data::group_by_length, true, "steps of like lengths")),
    }
}

/// Converts a number of steps, which may be a fraction of the run.
fn whole_steps(converter: &mut Converter<'_>, key: &'static str, value: &Value, comment: &str) -> Outcome {
    match (number(value), converter.steps()) {
        (Some(part), Some(steps)) if part > 0.0 && part < 1.0 => {
            converter.set(key, (part * steps as f64).ceil() as u64, comment)
        }
        (Some(part), None) if part > 0.0 && part < 1.0 => {
            none(format!("it is a part of the run, and {key} is a number of steps"))
        }
        _ => converter.set_count(key, value, comment),
    }
}

/// Converts the unit of an interval.
fn strategy(converter: &mut Converter<'_>, key: &str, value: &Value) -> Outcome {
    match shown(value).as_str() {
        "steps" => not_needed("train.validate_every, checkpoint.every and telemetry.every are in steps"),
        "best" => converter.set(Checkpoint::keep_best, true, "the state with the lowest validation loss"),
        _ => converter.by_table(key, value),
    }
}

/// Converts the fraction of the data that is held out.
pub(super) fn validation_part(converter: &mut Converter<'_>, value: &Value) -> Outcome {
    match number(value) {
        Some(0.0) => not_needed("a part is always held out: data.validation_fraction"),
        Some(part) if part > 0.0 && part < 1.0 => {
            converter.set(Data::validation_fraction, part, "part of the data that is held out")
        }
        Some(_) => none("it is a number of samples: use data.validation_fraction, the part that is held out"),
        None => not_a("number", value),
    }
}

/// Converts the folder or hub name of a model.
pub(super) fn model(converter: &mut Converter<'_>, value: &Value) -> Outcome {
    let Value::String(name) = value else { return not_a("path", value) };
    const COMMENT: &str = "folder with the sizes and first weights";
    let directories = converter.directories;
    if directories.current().join(name).is_dir() {
        return converter.set("model.from", directories.for_configuration(name), COMMENT);
    }
    let short = match config::how_to_download(name) {
        Some(advice) => {
            converter.notes.push(format!("{name}: there is no such folder here; {advice}"));
            name.rsplit('/').next().unwrap_or(name).to_owned()
        }
        None => {
            converter.notes.push(format!("{name}: there is no such folder here"));
            name.clone()
        }
    };
    converter.set("model.from", directories.for_configuration(&short), COMMENT)
}

/// Converts the number of tokens in a sequence.
pub(super) fn context(converter: &mut Converter<'_>, value: &Value) -> Outcome {
    converter.set_count("model.context", value, "tokens in a sequence")
}
