//! Configurations for tests of plans.
#![allow(dead_code, reason = "each test binary uses its part")]
#![allow(clippy::unwrap_used, reason = "in tests, a panic is the report of a failure")]

use std::path::Path;

use config::RunConfig;
use plan::{DeviceRanks, PlanDevice, prepare};
use worker::{Placement, Setup};

pub(crate) const GPT: &str = "[model]
kind = \"gpt\"
layers = 2
heads = 2
width = 32
context = 16
vocabulary = 64
[data]
kind = \"synthetic\"
[train]
steps = 3
micro_batch_size = 2
global_batch_size = 64
[parallel]
bucket_bytes = 16384
";

/// Configuration of a small perceptron.
pub(crate) const MLP: &str = "[model]
kind = \"mlp\"
sizes = [16, 32, 32, 16]
[data]
kind = \"synthetic\"
[train]
steps = 3
[optim]
warmup_steps = 1
";

/// Returns the setup of [`GPT`] with keys changed, on an imitated GPU or the CPU.
pub(crate) fn setup(gpu: bool, sets: &[&str]) -> Setup {
    setup_from(GPT, gpu, sets)
}

/// Returns the setup of the configuration `text` with keys changed, on an imitated GPU or the CPU.
pub(crate) fn setup_from(text: &str, gpu: bool, sets: &[&str]) -> Setup {
    let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
    vision::register().unwrap();
    let config = RunConfig::parse(text, "test.toml", Path::new("/"), &sets).unwrap();
    let device = if gpu { PlanDevice::shipped().unwrap() } else { PlanDevice::host() };
    let description = device.description(DeviceRanks::from_config(&config));
    prepare(config, Placement::Meta(description)).unwrap()
}
