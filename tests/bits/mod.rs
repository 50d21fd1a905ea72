//! Equal bits: the same losses and weights on every grid of ranks and with any number of threads.

mod adapters;
mod context;
mod data;
mod experts;
mod graphs;
mod grids;
mod loss_scale;
mod means;
mod models;
mod offload;
mod planted;
mod precision;
mod preference;
mod tensor;
mod uneven;
mod zero;

use std::sync::MutexGuard;

use crate::common::devices::{self, gpu};
use crate::common::runs::{GPT, config, train_in};
use worker::DeviceChoice;

const PAIR: &str = "parallel.data=2";
const THREE: &str = "parallel.data=3";
const PIPELINE: &str = "parallel.pipeline=2";
/// Four parts of every sum over a divided dimension of a layer.
const LANES: &str = "parallel.tensor_lanes=4";
const SHARDED: &str = "parallel.zero_stage=1";
const ZERO_2: &str = "parallel.zero_stage=2";
const ZERO_3: &str = "parallel.zero_stage=3";
const PAIRS: &str = "parallel.shard=2";
const GPIPE: &str = "parallel.schedule=gpipe";
const INTERLEAVED: &str = "parallel.schedule=interleaved";
const ZERO_BUBBLE: &str = "parallel.schedule=zero-bubble";
const BLOCK: &str = "memory.recompute=block";
/// The key of how many ranks share a GPU.
const SHARE: &str = "parallel.ranks_per_device";
const LIBRARY: &str = "parallel.reduction=nccl";

/// [`devices::alone`], if a job is on GPUs.
fn alone(device: DeviceChoice) -> Option<MutexGuard<'static, ()>> {
    (device != DeviceChoice::Cpu).then(devices::alone)
}

struct History {
    losses: Vec<u32>,
    weights: String,
    validation: Option<u64>,
    /// Of pairs of answers, a figure of the validation.
    figure: Option<serde_json::Value>,
}

fn history(text: &str, overrides: &[&str]) -> History {
    history_on(DeviceChoice::Cpu, text, overrides)
}

fn history_on(device: DeviceChoice, text: &str, overrides: &[&str]) -> History {
    let _alone = alone(device);
    let directory = tempfile::tempdir().unwrap();
    let report = train_in(&directory.path().join("run"), config(text, overrides), device).unwrap();
    let is_planned = report.unplanned.as_ref().is_some_and(Vec::is_empty);
    let has_plan = device == DeviceChoice::Cpu || overrides.iter().any(|set| set.starts_with(SHARE));
    assert!(is_planned || !has_plan, "{overrides:?}: {report}");
    History {
        losses: report.summary.losses.iter().map(|loss| loss.to_bits()).collect(),
        weights: report.summary.weights_sha256.clone(),
        validation: report.validation_loss.map(f64::to_bits),
        figure: report.summary.more.get("validation_reward_margin").cloned(),
    }
}

/// One row: a configuration, overrides of all its runs, and variants that must not change a bit.
type Row = (&'static str, &'static [&'static str], &'static [&'static [&'static str]]);

/// Asserts that all variants of a row have the losses, weights and validation loss of its first, on the CPU.
fn assert_equal_bits(table: &[Row]) {
    assert_equal_bits_on(DeviceChoice::Cpu, table, false);
}

/// [`assert_equal_bits`], and where there is a GPU also on that one, which all ranks share.
fn assert_equal_bits_on_devices(table: &[Row]) {
    assert_equal_bits(table);
    if gpu() {
        assert_equal_bits_on(DeviceChoice::Cuda, table, true);
    }
}

/// [`assert_equal_bits`] on a device, of which all ranks share one if `shared`.
fn assert_equal_bits_on(device: DeviceChoice, table: &[Row], shared: bool) {
    for (row, (text, common, variants)) in table.iter().enumerate() {
        let run = |variant: &[&'static str]| {
            let sets = [*common, variant].concat();
            let ranks = if shared { config(text, &sets).world_size() } else { 1 };
            history_on(device, text, &[&sets[..], &[&format!("{SHARE}={ranks}")]].concat())
        };
        let reference = run(variants[0]);
        assert!(reference.losses.iter().all(|loss| f32::from_bits(*loss).is_finite()));
        for variant in &variants[1..] {
            let other = run(variant);
            assert_eq!(reference.losses, other.losses, "losses of row {row}, {variant:?}");
            assert_eq!(reference.weights, other.weights, "weights of row {row}, {variant:?}");
            assert_eq!(reference.validation, other.validation, "validation of row {row}, {variant:?}");
            assert_eq!(reference.figure, other.figure, "figure of row {row}, {variant:?}");
        }
    }
}

#[test]
fn keys_that_decide_bits_change_them() {
    let reference = history(GPT, &[]);
    for different in ["train.seed=2", "parallel.lanes=1", "optim.learning_rate=2e-3"] {
        assert_ne!(reference.weights, history(GPT, &[different]).weights, "{different}");
    }
}

#[test]
fn thread_counts_have_equal_bits() {
    let hash = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| history(GPT, &["parallel.data=1"]).weights)
    };
    let one = hash(1);
    assert_eq!(one, hash(2));
    assert_eq!(one, hash(5));
}
