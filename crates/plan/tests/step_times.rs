//! Predicted steps against measured ones.
#![allow(clippy::unwrap_used, reason = "in tests, a panic is the report of a failure")]

mod common;

use std::path::Path;

use config::RunConfig;
use plan::{DeviceRanks, PlanDevice, StepTime, prepare_shapes};
use worker::Placement;

/// The prediction of a shipped configuration with other keys on the shipped H200.
fn predict(file: &str, sets: &[&str]) -> StepTime {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../launch/configs").join(file);
    let text = std::fs::read_to_string(&path).unwrap();
    let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
    let config = RunConfig::parse(&text, file, path.parent().unwrap(), &sets).unwrap();
    let device = PlanDevice::shipped().unwrap();
    let description = device.description(DeviceRanks::of(&config));
    let setup = prepare_shapes(config, Placement::Meta(description)).unwrap();
    StepTime::of(&setup, &device).unwrap().unwrap()
}

/// Milliseconds that `benches/notes` give for one H200.
#[test]
fn measured_steps_are_predicted() {
    let gpt = ["precision.compute=bf16", "data.kind=synthetic", "parallel.lanes=1"];
    for (file, sets, measured) in [
        ("gpt2-124m.toml", &["train.micro_batch_size=64", "train.global_batch_size=64"][..], 107.4),
        ("gpt2-1558m.toml", &["train.micro_batch_size=16", "train.global_batch_size=16"], 318.0),
        ("llama3-1b.toml", &["train.micro_batch_size=4", "train.global_batch_size=4"], 250.0),
        ("llama3-1b.toml", &["train.micro_batch_size=4", "train.global_batch_size=4", "lora.rank=16"], 198.0),
        ("gpt2-124m.toml", &["train.micro_batch_size=64", "train.global_batch_size=64", "precision.matmul=fp8"], 93.3),
        ("gpt2-1558m.toml", &["train.micro_batch_size=16", "train.global_batch_size=16", "precision.matmul=fp8"], 230.3),
        ("llama3-1b.toml", &["train.micro_batch_size=4", "train.global_batch_size=4", "precision.matmul=fp8"], 198.8),
        ("gpt2-124m.toml", &["train.micro_batch_size=64", "train.global_batch_size=64", "memory.recompute=block"], 127.5),
    ] {
        let sets: Vec<_> = gpt.iter().chain(sets).copied().collect();
        let began = std::time::Instant::now();
        let time = predict(file, &sets);
        let error = 1e3 * time.step_seconds / measured - 1.0;
        println!("{file} {sets:?}: {measured} {:+.1} % in {:?}\n{time}", 100.0 * error, began.elapsed());
    }
}
