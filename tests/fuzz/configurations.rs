//! Fuzzes configurations: they are planned, or refused in one sentence with status 2.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use config::RunConfig;
use plan::{plan, prepare};
use worker::Placement;

use crate::common::random::{Budget, Random};
use crate::common::root;
use crate::common::runs::{GPT, LLAMA, MLP, RESNET};

/// Integers at the edges of ranges, and some inside.
const INTEGERS: [&str; 14] = [
    "0",
    "1",
    "2",
    "3",
    "4",
    "5",
    "7",
    "8",
    "16",
    "33",
    "-1",
    "4294967296",
    "9223372036854775807",
    "18446744073709551616",
];
/// Values of every type, and invalid ones.
const OTHERS: [&str; 22] = [
    "0.5",
    "1e-60",
    "1e60",
    "nan",
    "-inf",
    "true",
    "\"\"",
    "\"none\"",
    "\"auto\"",
    "[]",
    "[1, 2]",
    "[0]",
    "{}",
    "\"é\\u0000\"",
    "1979-05-27",
    "",
    "'",
    "[[",
    "block",
    "zero-bubble",
    "interleaved",
    "sgd",
];
/// Keys that determine the amount of computation; they stay small because valid configurations are planned in
/// full.
const SIZES: [&str; 12] = [
    "model.layers",
    "model.heads",
    "model.width",
    "model.context",
    "model.sizes",
    "model.vocabulary",
    "train.micro_batch_size",
    "train.global_batch_size",
    "train.validation_micro_batches",
    "parallel.data",
    "parallel.pipeline",
    "train.steps",
];

/// Configurations to mutate, each with settings with which more keys can be combined.
const BASES: [(&str, &[&str]); 6] = [
    (GPT, &[]),
    (GPT, &["model.width=64", "model.heads=2", "precision.compute=bf16"]),
    (LLAMA, &[]),
    (LLAMA, &["model.width=128", "precision.compute=bf16", "precision.matmul=fp8"]),
    (MLP, &[]),
    (RESNET, &[]),
];

/// Returns all documented keys, each with the named values that it accepts.
fn keys() -> BTreeMap<String, Vec<String>> {
    let mut keys: BTreeMap<String, Vec<String>> = BTreeMap::new();
    vision::register().unwrap();
    for row in config::reference().lines().filter(|line| line.starts_with("| `")) {
        let columns: Vec<&str> = row.split(" | ").collect();
        let key = columns[0].trim_start_matches("| ").trim_matches('`');
        if key.split_once('.').is_none_or(|(section, key)| !is_name(section) || !is_name(key)) {
            continue;
        }
        let quoted = columns[1].split('`').skip(1).step_by(2).filter(|name| name.starts_with('"'));
        keys.entry(key.to_owned()).or_default().extend(quoted.map(str::to_owned));
    }
    keys
}

fn is_name(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte == b'_' || byte.is_ascii_digit();
    !text.is_empty() && text.bytes().all(fits)
}

fn value(random: &mut Random, key: &str, names: &[String]) -> String {
    if SIZES.contains(&key) {
        return random.one(&INTEGERS[..9]).to_string();
    }
    if !names.is_empty() && !random.once_in(4) {
        return random.one(names).clone();
    }
    let all = [&INTEGERS[..], &OTHERS[..]].concat();
    random.one(&all).to_string()
}

/// Plans a configuration if it is valid, with existing data.
fn try_one(text: &str, overrides: &[String]) -> Result<(), String> {
    vision::register().unwrap();
    let config =
        RunConfig::parse(text, "fuzz.toml", &root(), overrides).map_err(|error| error.to_string())?;
    let setup = prepare(config, Placement::Cpu).map_err(|error| {
        assert!(error.exit_status() == 2 || error.is_out_of_memory(), "{overrides:?}: {error}");
        error.to_string()
    })?;
    let last = setup.config.world_size() - 1;
    for rank in if last == 0 { vec![0] } else { vec![0, last] } {
        plan(&setup, rank).map_err(|error| {
            assert!(error.exit_status() == 2 || error.is_out_of_memory(), "{overrides:?}: {error}");
            error.to_string()
        })?;
    }
    Ok(())
}

#[test]
fn random_configurations_are_planned_or_refused_in_a_sentence() {
    let keys = keys();
    let budget = Budget::of_fuzzer();
    assert!(keys.len() > 40, "{keys:?}");
    assert!(keys["model.kind"].contains(&"\"llama\"".to_owned()), "{keys:?}");
    let names: Vec<&String> = keys.keys().collect();
    let mut random = Random::new(7);
    let (mut accepted, mut round) = (0, 0);
    while budget.within(round, 150) {
        let (text, base) = *random.one(&BASES);
        let mut overrides: Vec<String> = base.iter().map(|&set| set.to_owned()).collect();
        for _ in 0..=random.below(4) {
            let key = *random.one(&names);
            overrides.push(format!("{key}={}", value(&mut random, key, &keys[key])));
        }
        let tried = catch_unwind(AssertUnwindSafe(|| try_one(text, &overrides)));
        match tried.unwrap_or_else(|_| panic!("a panic at {overrides:?}")) {
            Ok(()) => accepted += 1,
            Err(message) => {
                assert_eq!(message.lines().count(), 1, "{overrides:?}: {message}");
                assert!(message.len() < 1500, "{overrides:?}: {message}");
            }
        }
        round += 1;
    }
    assert!(accepted > round / 50, "{accepted} of {round} are configurations");
}
