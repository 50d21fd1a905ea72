//! Random configurations are planned, or refused in one sentence with status 2.

use std::panic::{AssertUnwindSafe, catch_unwind};

use config::RunConfig;
use plan::{plan, prepare};
use worker::Placement;

use crate::common::random::{Budget, Random};
use crate::common::root;
use crate::common::runs::{GPT, MLP};

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
/// Keys that determine the amount of computing stay small, because valid configurations are planned in full.
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

/// All keys of the documentation's table.
fn keys() -> Vec<String> {
    let reference = config::reference();
    let mut keys: Vec<String> = reference
        .split('`')
        .filter(|word| word.split_once('.').is_some_and(|(section, key)| is_name(section) && is_name(key)))
        .map(str::to_owned)
        .collect();
    keys.sort();
    keys.dedup();
    keys
}

fn is_name(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte == b'_' || byte.is_ascii_digit();
    !text.is_empty() && text.bytes().all(fits)
}

fn value(random: &mut Random, key: &str) -> String {
    if SIZES.contains(&key) {
        return random.one(&INTEGERS[..9]).to_string();
    }
    let all = [&INTEGERS[..], &OTHERS[..]].concat();
    random.one(&all).to_string()
}

/// Plans a configuration if it is valid, with existing data.
fn try_one(text: &str, overrides: &[String]) -> Result<(), String> {
    let config =
        RunConfig::parse(text, "fuzz.toml", &root(), overrides).map_err(|error| error.to_string())?;
    let setup = prepare(config, Placement::Cpu).map_err(|error| {
        assert_eq!(error.exit_status(), 2, "{overrides:?}: {error}");
        error.to_string()
    })?;
    let last = setup.config.world_size() - 1;
    for rank in if last == 0 { vec![0] } else { vec![0, last] } {
        plan(&setup, rank).map_err(|error| error.to_string())?;
    }
    Ok(())
}

#[test]
fn random_configurations_are_planned_or_refused_in_a_sentence() {
    let (keys, budget) = (keys(), Budget::of_fuzzer());
    assert!(keys.len() > 40, "{keys:?}");
    let mut random = Random::new(7);
    let (mut accepted, mut round) = (0, 0);
    while budget.within(round, 150) {
        let text = *random.one(&[GPT, MLP]);
        let overrides: Vec<String> = (0..=random.below(4))
            .map(|_| {
                let key = random.one(&keys).clone();
                let value = value(&mut random, &key);
                format!("{key}={value}")
            })
            .collect();
        let tried = catch_unwind(AssertUnwindSafe(|| try_one(text, &overrides)));
        match tried.unwrap_or_else(|_| panic!("a panic at {overrides:?}")) {
            Ok(()) => accepted += 1,
            Err(said) => {
                assert_eq!(said.lines().count(), 1, "{overrides:?}: {said}");
                assert!(said.len() < 1500, "{overrides:?}: {said}");
            }
        }
        round += 1;
    }
    assert!(accepted > round / 50, "{accepted} of {round} are configurations");
}
