//! Tables of runs: equal losses and weights on every grid and with any number of threads, and on every rank
//! exactly the planned bytes.

mod adapters;
mod allocator;
mod averages;
mod context;
mod data;
mod experts;
mod gpu;
mod graphs;
mod grids;
mod groups;
mod later_tokens;
mod linear_attention;
mod loss_scale;
mod means;
mod models;
mod muon;
mod offload;
mod pipelines;
mod planted;
mod precision;
mod preference;
mod recompute;
mod recurrent;
mod relatives;
mod shares;
mod tensor;
mod uneven;
mod widths;
mod zero;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use memory::Statistics;
use telemetry::{LATER_LOSSES, RankStatistics, Statistic};

use crate::common::devices::{self, gpu};
use crate::common::runs::{GPT, config, train_in};
use crate::common::sizes;
use worker::DeviceChoice;

const PAIR: &str = "parallel.data=2";
const THREE: &str = "parallel.data=3";
const PIPELINE: &str = "parallel.pipeline=2";
/// Setting: sums over a divided dimension of a layer have four parts.
const LANES: &str = "parallel.tensor_lanes=4";
const SHARDED: &str = "parallel.zero_stage=1";
const ZERO_2: &str = "parallel.zero_stage=2";
const ZERO_3: &str = "parallel.zero_stage=3";
const PAIRS: &str = "parallel.shard=2";
const GPIPE: &str = "parallel.schedule=gpipe";
const INTERLEAVED: &str = "parallel.schedule=interleaved";
const ZERO_BUBBLE: &str = "parallel.schedule=zero-bubble";
const BLOCK: &str = "memory.recompute=block";
/// Key of the number of ranks that share a GPU.
const SHARE: &str = "parallel.ranks_per_device";
const LIBRARY: &str = "parallel.reduction=nccl";

/// Variants of a row with a single run.
const ONCE: &[&[&str]] = &[&[]];

/// Locks the GPUs with [`devices::alone`] if the job uses them.
fn alone(device: DeviceChoice) -> Option<MutexGuard<'static, ()>> {
    (device != DeviceChoice::Cpu).then(devices::alone)
}

/// Results of a run.
struct Outcome {
    losses: Vec<u32>,
    weights: String,
    validation: Option<u64>,
    /// For preference pairs, a metric of the validation; for modules that predict later tokens, their losses.
    figure: Option<serde_json::Value>,
    /// Whether an update was skipped, for an infinite gradient or a spike.
    skips: bool,
    ranks: Vec<RankStatistics>,
}

impl Outcome {
    fn losses(&self) -> Vec<f32> {
        self.losses.iter().copied().map(f32::from_bits).collect()
    }
}

/// Runs a configuration on the CPU, once per process even if several rows have it.
fn run(text: &str, overrides: &[&str]) -> Arc<Outcome> {
    run_on(DeviceChoice::Cpu, text, overrides)
}

/// Like [`run`], on a device; on a GPU, every call runs again.
fn run_on(device: DeviceChoice, text: &str, overrides: &[&str]) -> Arc<Outcome> {
    static OUTCOMES: Mutex<BTreeMap<String, Arc<OnceLock<Arc<Outcome>>>>> = Mutex::new(BTreeMap::new());
    if device != DeviceChoice::Cpu {
        return Arc::new(run_anew(device, text, overrides));
    }
    let key = config(text, overrides).to_toml();
    let outcome = OUTCOMES.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_default().clone();
    outcome.get_or_init(|| Arc::new(run_anew(device, text, overrides))).clone()
}

/// Runs a configuration. Asserts that every rank uses exactly the planned bytes on its device and host, and
/// that offloading stores something on the host.
fn run_anew(device: DeviceChoice, text: &str, overrides: &[&str]) -> Outcome {
    let _alone = alone(device);
    let directory = tempfile::tempdir().unwrap();
    let config = config(text, overrides);
    let world_size = config.world_size();
    let run_dir = directory.path().join("run");
    let report = train_in(&run_dir, config, device).unwrap();
    let spikes = std::fs::read_to_string(run_dir.join("spikes.json")).unwrap_or_default();
    let is_planned = report.unplanned.as_ref().is_some_and(Vec::is_empty);
    let has_plan = device == DeviceChoice::Cpu || overrides.iter().any(|set| set.starts_with(SHARE));
    assert!(is_planned || !has_plan, "{overrides:?}: {report}");
    assert_eq!(report.ranks.len(), world_size, "{overrides:?}");
    if device == DeviceChoice::Cpu {
        let offloads = overrides.iter().any(|set| set.contains("offload"));
        for rank in &report.ranks {
            assert!(rank.get(Statistic::AllocatedBytes) > 0, "rank {} of {overrides:?}", rank.rank);
            let host = rank.get(Statistic::PeakHostReservedBytes);
            assert_eq!(host > 0, offloads, "{host} on the host of rank {} of {overrides:?}", rank.rank);
        }
    }
    Outcome {
        losses: report.summary.losses.iter().map(|loss| loss.to_bits()).collect(),
        weights: report.summary.weights_sha256.clone(),
        validation: report.validation_loss.map(f64::to_bits),
        figure: ["validation_reward_margin", LATER_LOSSES]
            .iter()
            .find_map(|name| report.summary.more.get(*name).cloned()),
        skips: report.to_string().contains("Skipped the update of") || spikes.contains("skip"),
        ranks: report.ranks,
    }
}

/// Returns a rank's bytes: allocated and reserved at the end, and their peaks.
fn figures(ran: &RankStatistics) -> [u64; 4] {
    [
        ran.get(Statistic::AllocatedBytes),
        ran.get(Statistic::ReservedBytes),
        ran.get(Statistic::PeakAllocatedBytes),
        ran.get(Statistic::PeakReservedBytes),
    ]
}

/// Like [`figures`], from a plan.
fn planned(plan: &Statistics) -> [u64; 4] {
    [plan.allocated(), plan.reserved(), plan.peak_allocated(), plan.peak_reserved()]
}

/// Number of variants above which a row is about grids.
const MANY: usize = 12;

/// A row: a configuration, overrides of all its runs, and variants that must not change a bit.
type Row<'a> = (&'a str, &'a [&'a str], &'a [&'a [&'a str]]);

/// Asserts on the CPU that all variants of a row have the losses, weights and validation loss of its first,
/// and the planned bytes.
fn check(table: &[Row<'_>]) {
    check_on(DeviceChoice::Cpu, table, false);
}

/// Like [`check`], and also on a GPU if there is one, which all ranks share.
fn check_on_devices(table: &[Row<'_>]) {
    check(table);
    if gpu() {
        check_on(DeviceChoice::Cuda, table, true);
    }
}

/// Returns the variants to run: with `PLIMSOLL_LONG_TESTS` all; otherwise the first, and as many others as
/// needed to run each setting. If settings must `meet`, each pair that occurs together must run too.
fn enough_of<'v>(variants: &[&'v [&'v str]], meet: bool) -> Vec<&'v [&'v str]> {
    let pairs = |variant: &[&'v str]| -> BTreeSet<[&'v str; 2]> {
        let others = |one: &'v str| variant.iter().filter(move |other| meet || one == **other);
        variant.iter().flat_map(|one| others(one).map(move |other| [*one, *other])).collect()
    };
    let mut missing: BTreeSet<_> = variants.iter().flat_map(|variant| pairs(variant)).collect();
    let mut chosen = BTreeSet::from([0]);
    while !sizes::are_wanted() && !missing.is_empty() {
        let met = |number: &usize| pairs(variants[*number]).intersection(&missing).count();
        // Among equals, the first.
        let Some(best) = (0..variants.len()).rev().max_by_key(met) else { break };
        missing = missing.difference(&pairs(variants[best])).copied().collect();
        chosen.insert(best);
    }
    let runs = |number: &usize| sizes::are_wanted() || chosen.contains(number);
    (0..variants.len()).filter(runs).map(|number| variants[number]).collect()
}

/// Returns the setting that makes all ranks share one device (`shared`), or gives each its own.
fn sharing(text: &str, sets: &[&str], shared: bool) -> String {
    format!("{SHARE}={}", if shared { config(text, sets).world_size() } else { 1 })
}

/// Keys that count steps.
const COUNTED: [&str; 5] =
    ["train.steps", "train.ema", "train.verify_every", "memory.empty_cache_every", "precision.scaler"];

/// Returns settings that shorten a row's run to two steps on the CPU, with a validation after each. Empty
/// with `PLIMSOLL_LONG_TESTS`, on GPUs, or if the row sets keys that count steps.
fn few_steps(device: DeviceChoice, text: &str, sets: &[&str]) -> &'static [&'static str] {
    let counts = sets.iter().any(|set| COUNTED.iter().any(|key| set.starts_with(key)));
    if device != DeviceChoice::Cpu || sizes::are_wanted() || counts || config(text, &[]).train.steps <= 2 {
        return &[];
    }
    let validates = text.contains("validate_every") && !sets.iter().any(|set| set.contains("validate_every"));
    if validates { &["train.steps=2", "train.validate_every=1"] } else { &["train.steps=2"] }
}

/// Like [`check`], on a device; if `shared`, all ranks share one.
fn check_on(device: DeviceChoice, table: &[Row<'_>], shared: bool) {
    for (row, (text, common, variants)) in table.iter().enumerate() {
        // Pairs of settings of a grid meet in the first row about grids.
        let meet = variants.len() > MANY && !table[..row].iter().any(|(.., others)| others.len() > MANY);
        let variants = enough_of(variants, meet);
        let steps = few_steps(device, text, &[common, &variants.concat()[..]].concat());
        let run = |variant: &[&str]| {
            let sets = [*common, steps, variant].concat();
            run_on(device, text, &[&sets[..], &[&sharing(text, &sets, shared)]].concat())
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
    let reference = run(GPT, &[]);
    for different in ["train.seed=2", "parallel.lanes=1", "optim.learning_rate=2e-3"] {
        assert_ne!(reference.weights, run(GPT, &[different]).weights, "{different}");
    }
}

#[test]
fn thread_counts_have_equal_bits() {
    let hash = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| run_anew(DeviceChoice::Cpu, GPT, &["parallel.data=1"]).weights)
    };
    let one = hash(1);
    assert_eq!(one, hash(2));
    assert_eq!(one, hash(5));
}

#[test]
fn meta_ranks_as_threads_use_the_same_bytes() {
    for overrides in [&["parallel.data=1"][..], &["parallel.data=2"], &["parallel.data=4", SHARDED]] {
        let overrides = [overrides, &["checkpoint.every=3"]].concat();
        let cpu = run(GPT, &overrides);
        let meta = run_on(DeviceChoice::Meta, GPT, &overrides);
        for (cpu, meta) in cpu.ranks.iter().zip(&meta.ranks) {
            assert_eq!(figures(cpu), figures(meta));
        }
    }
}

#[test]
fn memory_after_each_step_is_constant() {
    let directory = tempfile::tempdir().unwrap();
    let run_dir = directory.path().join("run");
    train_in(&run_dir, config(GPT, &["train.steps=30", "parallel.data=2"]), DeviceChoice::Cpu).unwrap();
    let lines = std::fs::read_to_string(run_dir.join("metrics.jsonl")).unwrap();
    let lines: Vec<serde_json::Value> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 30);
    let line_bytes =
        |line: &serde_json::Value| (line["allocated_bytes"].as_u64(), line["reserved_bytes"].as_u64());
    assert!(line_bytes(&lines[1]).0.is_some());
    assert!(lines[1..].iter().all(|line| line_bytes(line) == line_bytes(&lines[1])));
}
