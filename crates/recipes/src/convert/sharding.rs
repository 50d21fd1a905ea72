//! Converts settings of DeepSpeed and FSDP.

use config::{Optim, Parallel};
use serde_json::Value;

use super::arguments::{count, is_on, parse, shown};
use super::converter::{Converter, Outcome, none};

/// Maximum size of a DeepSpeed file in bytes.
const MOST_BYTES: u64 = 1 << 20;
/// Supported ZeRO stages.
const STAGES: [u64; 4] = [0, 1, 2, 3];

/// Converts DeepSpeed's settings, inline or in a file, to a ZeRO stage.
pub(super) fn deepspeed(converter: &mut Converter<'_>, value: &Value) -> Outcome {
    let found = match value {
        Value::String(path) => {
            let file = converter.directories.current().join(path);
            let text = system::input::read_text(&file, MOST_BYTES).ok();
            let settings = text.and_then(|text| parse(&text, path).ok()).map(Value::Object);
            settings.as_ref().map(stage_of).unwrap_or_else(|| stage_in_name(path))
        }
        settings => stage_of(settings),
    };
    match found {
        Some((stage, offloads)) => {
            let outcome = set_stage(converter, stage);
            if offloads {
                converter.set(Optim::offload, true, "masters and moments are in host memory");
            }
            outcome
        }
        None => converter.by_table("deepspeed", value),
    }
}

/// Returns the ZeRO stage, and whether optimizer state is offloaded.
fn stage_of(settings: &Value) -> Option<(u64, bool)> {
    let zero = settings.get("zero_optimization")?;
    let stage = count(zero.get("stage")?).filter(|stage| STAGES.contains(stage))?;
    let device = zero.get("offload_optimizer").and_then(|offload| offload.get("device"));
    Some((stage, device.is_some_and(|device| shown(device) == "cpu")))
}

/// Returns the ZeRO stage in a file's name, as in `zero3.json` and `ds_z3_config.json`.
fn stage_in_name(path: &str) -> Option<(u64, bool)> {
    let name = path.rsplit('/').next().unwrap_or(path).to_ascii_lowercase();
    let stage = ["zero", "z", "stage"].iter().find_map(|word| {
        let digit = |rest: &str| rest.trim_start_matches(['_', '-']).chars().next()?.to_digit(10);
        name.split(word).skip(1).find_map(digit)
    });
    let stage = u64::from(stage?);
    STAGES.contains(&stage).then(|| (stage, name.contains("offload")))
}

/// Converts FSDP's options.
pub(super) fn fsdp(converter: &mut Converter<'_>, value: &Value) -> Outcome {
    let words = shown(value);
    if words.contains("full_shard") || is_on(value) {
        set_stage(converter, 3)
    } else if words.contains("shard_grad_op") {
        set_stage(converter, 2)
    } else {
        converter.by_table("fsdp", value)
    }
}

/// Converts FSDP's settings, which determine whether weights are sharded too.
pub(super) fn fsdp_settings(converter: &mut Converter<'_>, value: &Value) -> Outcome {
    let strategy = ["fsdp_sharding_strategy", "sharding_strategy"].iter().find_map(|key| value.get(*key));
    let reshards =
        ["fsdp_reshard_after_forward", "reshard_after_forward"].iter().find_map(|key| value.get(*key));
    let words = strategy.map(shown).unwrap_or_default().to_ascii_uppercase();
    match (words.as_str(), reshards) {
        ("FULL_SHARD", _) => set_stage(converter, 3),
        ("SHARD_GRAD_OP", _) => set_stage(converter, 2),
        (_, Some(reshards)) => set_stage(converter, if is_on(reshards) { 3 } else { 2 }),
        _ => none("use parallel.zero_stage = 3, or 2 where weights stay whole"),
    }
}

fn set_stage(converter: &mut Converter<'_>, stage: u64) -> Outcome {
    const NOTE: &str =
        "parallel.zero_stage shards state over parallel.data ranks: set it to the number of GPUs";
    if !converter.notes.iter().any(|note| note == NOTE) {
        converter.notes.push(NOTE.to_owned());
    }
    converter.set(Parallel::zero_stage, stage, "state that each data-parallel rank keeps a shard of")
}
