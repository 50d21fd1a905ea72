//! Tests of offloading state, weights and activations to host memory: updating state in pieces, and copying
//! weights and segment inputs ahead of their use, change no bit.

use super::{
    BLOCK, INTERLEAVED, ONCE, PAIRS, PIPELINE, Row, SHARDED, ZERO_2, ZERO_3, ZERO_BUBBLE, check,
    check_on_devices, figures, planned, run, sharing,
};
use collective::Communicator;
use plan::{plan, prepare};
use telemetry::Statistic;
use worker::{DeviceChoice, Placement, Worker};

use crate::common::devices::{alone, gpu};
use crate::common::runs::{GPT, LLAMA, MLP, RESNET, config, train_in};

const STATE: &str = "optim.offload=true";
const ACTIVATIONS: &str = "memory.offload=activations";
const WEIGHTS: &str = "memory.offload_weights=true";
const BF16: &str = "precision.compute=bf16";
const FP8: &str = "precision.matmul=fp8";

/// Optimizers, state dtypes, precisions, clipping and grids; weights with and without masters, frozen and
/// tied weights, shards and stages.
const TABLE: &[Row] = &[
    (
        GPT,
        &["precision.compute=bf16", "model.width=64", "model.layers=4"],
        &[
            &[],
            &[STATE],
            &[STATE, "parallel.data=3", SHARDED],
            &[STATE, "parallel.data=2", ZERO_2, PIPELINE, ZERO_BUBBLE],
            &[STATE, "parallel.data=4", ZERO_3, PAIRS, BLOCK],
            &[WEIGHTS],
            &[WEIGHTS, "parallel.data=2", "parallel.prefetch=0"],
            &[ACTIVATIONS, BLOCK],
            &[ACTIVATIONS, "memory.recompute=2", "parallel.data=2", PIPELINE, ZERO_BUBBLE],
            &[ACTIVATIONS, BLOCK, PIPELINE, INTERLEAVED, STATE, "parallel.data=2", ZERO_3],
            &[WEIGHTS, "parallel.data=3", ZERO_3, PIPELINE, ZERO_BUBBLE],
        ],
    ),
    (
        GPT,
        &["precision.compute=bf16", "optim.kind=lion", "optim.state=bf16", "model.width=64"],
        &[
            &["parallel.data=2"],
            &[STATE],
            &[STATE, "parallel.data=3", ZERO_3],
            &[WEIGHTS, "optim.offload=true"],
        ],
    ),
    (
        LLAMA,
        &["precision.compute=bf16", "optim.state=8bit", "model.width=64"],
        &[&[], &[STATE, "parallel.data=2", SHARDED]],
    ),
    (
        GPT,
        &["precision.compute=bf16", "precision.matmul=fp8", "model.width=64", "model.layers=3"],
        &[
            &[],
            &[WEIGHTS, STATE],
            &[WEIGHTS, STATE, "parallel.data=2"],
            &[WEIGHTS, STATE, "parallel.data=3", ZERO_3],
        ],
    ),
    (
        LLAMA,
        &["precision.compute=bf16", "precision.matmul=fp8", "precision.fp8_recipe=rowwise", "model.width=64"],
        &[&[], &[WEIGHTS, STATE, BLOCK], &[WEIGHTS, STATE, PIPELINE]],
    ),
    (GPT, &["precision.compute=f16", "precision.scaler.init_scale=3e7", "train.steps=3"], &[&[], &[STATE]]),
    (
        GPT,
        &["lora.rank=4", "optim.state=bf16"],
        &[&[], &[STATE, "parallel.data=2"], &[WEIGHTS], &[WEIGHTS, BLOCK, PIPELINE]],
    ),
    (
        LLAMA,
        &["precision.compute=bf16", "lora.rank=4", "lora.base=nf4"],
        &[
            &[],
            &[WEIGHTS],
            &[WEIGHTS, ACTIVATIONS, BLOCK, "parallel.data=2"],
            &[WEIGHTS, "parallel.data=3", ZERO_3, PIPELINE],
        ],
    ),
    (
        GPT,
        &["model.tied=false", "train.freeze=['w?e.*', 'h.0.*']", "train.verify_every=2"],
        &[&[], &[WEIGHTS, PIPELINE], &[ACTIVATIONS, BLOCK], &[ACTIVATIONS, WEIGHTS, BLOCK]],
    ),
    (MLP, &["optim.kind=sgd"], &[&[], &[STATE], &[WEIGHTS, "parallel.tensor=1"]]),
    (
        RESNET,
        &["optim.kind=sgd", "precision.compute=bf16"],
        &[&[], &[STATE, "parallel.data=2"], &[WEIGHTS, "parallel.data=2"]],
    ),
];

#[test]
fn what_is_offloaded_has_equal_bits() {
    let common: &[&str] = &["train.steps=2", "train.validate_every=1", "optim.clip_norm=0.1"];
    for (text, sets, variants) in TABLE {
        let sets = [common, sets].concat();
        check_on_devices(&[(text, &sets, variants)]);
    }
}

/// Settings with a loss scale at which the first f16 gradients overflow.
const OVERFLOWS: &[&str] = &["precision.compute=f16", "precision.scaler.init_scale=3e7", "model.width=64"];
/// Settings with a spike threshold that about half of the norms exceed; ten norms can, so at least one does,
/// whatever the text.
const SPIKES: &[&str] = &[
    "precision.compute=bf16",
    "train.on_spike=skip",
    "train.spike_deviations=0.001",
    "train.spike_window=2",
    "train.steps=12",
    "model.width=64",
];

/// Checks every kind of offloading, of state and weights in each dtype, with skipped updates.
#[test]
fn skipped_updates_leave_what_is_offloaded() {
    // State and weight dtypes need only one grid, and grids only one dtype.
    const OF_TYPES: &[&[&str]] = &[&[], &[WEIGHTS, STATE]];
    const OF_GRIDS: &[&[&str]] = &[
        &[],
        &[STATE],
        &[WEIGHTS],
        &[WEIGHTS, STATE, "parallel.data=3", ZERO_3],
        &[WEIGHTS, "parallel.data=2", PIPELINE, ZERO_BUBBLE],
        &[STATE, "parallel.data=2", PIPELINE, SHARDED],
        &[WEIGHTS, ACTIVATIONS, BLOCK],
    ];
    let rows: &[(&[&str], Row)] = &[
        (OVERFLOWS, (GPT, &["model.layers=3"], OF_GRIDS)),
        (OVERFLOWS, (GPT, &["optim.kind=lion", "optim.state=bf16"], OF_TYPES)),
        (OVERFLOWS, (LLAMA, &["optim.state=8bit"], OF_TYPES)),
        (OVERFLOWS, (GPT, &["optim.kind=sgd", "precision.weights=f32"], OF_TYPES)),
        (OVERFLOWS, (LLAMA, &["lora.rank=4", "lora.base=nf4"], OF_TYPES)),
        (SPIKES, (GPT, &["model.layers=3"], OF_GRIDS)),
        (SPIKES, (LLAMA, &["optim.state=8bit"], OF_TYPES)),
        (SPIKES, (GPT, &["lora.rank=4"], OF_TYPES)),
    ];
    for (skips, (text, sets, variants)) in rows {
        let sets = [*skips, *sets].concat();
        check_on_devices(&[(text, &sets, variants)]);
        // The table's first run.
        let first = run(text, &[&sets[..], &[&sharing(text, &sets, false)]].concat());
        assert!(first.skips, "{sets:?}");
    }
}

#[test]
fn what_is_offloaded_keeps_its_plans() {
    let table: &[(&str, &[&str])] = &[
        (GPT, &[STATE, BF16, "model.width=64", "checkpoint.every=1"]),
        (
            GPT,
            &[STATE, BF16, "optim.state=8bit", "model.width=64", "parallel.data=3", "parallel.zero_stage=3"],
        ),
        (GPT, &[STATE, "optim.kind=lion", "parallel.data=2", "parallel.pipeline=2", "parallel.zero_stage=1"]),
        (LLAMA, &[STATE, BF16, "lora.rank=4", "memory.preallocate=true"]),
        (MLP, &[STATE, "optim.kind=sgd", "optim.momentum=0", BF16]),
        (GPT, &[ACTIVATIONS, "memory.recompute=block", "parallel.data=2"]),
        (GPT, &[ACTIVATIONS, "memory.recompute=2", STATE, "parallel.pipeline=2", "model.layers=4"]),
        (
            GPT,
            &[ACTIVATIONS, "memory.recompute=block", "train.freeze=['w?e.*', 'h.0.*']", "model.tied=false"],
        ),
        (GPT, &[WEIGHTS, BF16, "model.layers=4", "checkpoint.every=1"]),
        (GPT, &[WEIGHTS, "parallel.data=3", "parallel.zero_stage=3", "memory.recompute=block"]),
        (LLAMA, &[WEIGHTS, BF16, "lora.rank=4", "parallel.pipeline=2", "parallel.prefetch=0"]),
        (
            LLAMA,
            &[WEIGHTS, BF16, "lora.rank=4", "lora.base=nf4", "parallel.data=2", "memory.recompute=block"],
        ),
        (LLAMA, &[WEIGHTS, "lora.rank=2", "lora.base=int4", "parallel.data=2", "parallel.zero_stage=3"]),
        (GPT, &[WEIGHTS, STATE, BF16, FP8, "model.width=64", "parallel.data=2"]),
        (GPT, &[WEIGHTS, STATE, BF16, FP8, "model.width=64", "parallel.data=2", "parallel.zero_stage=3"]),
    ];
    for (text, sets) in table {
        check(&[(text, &[&["train.steps=2"][..], sets].concat(), ONCE)]);
    }
}

/// Checks that the host holds the state that the device no longer has, and the device holds the buffers.
#[test]
fn state_moves_to_the_host() {
    let planned = |more: &[&str]| {
        let sets = [&[BF16, "model.width=256", "model.layers=6"][..], more].concat();
        let setup = prepare(config(GPT, &sets), Placement::Cpu).unwrap();
        let counters = plan(&setup, 0).unwrap().counters;
        let parameters: usize = setup.blueprint.sizes().iter().sum();
        let state = counters.get(Statistic::LiveBytes(device::Category::OptimizerState));
        (12 * parameters as u64, state, counters.get(Statistic::HostAllocatedBytes))
    };
    let ((state, on_device, none), (_, buffers, host)) = (planned(&[]), planned(&[STATE]));
    assert!(none == 0 && on_device >= state, "{on_device} {state}");
    assert!(host >= state && host < state + state / 10, "{host} {state}");
    // Three pieces of eight or more.
    assert!(buffers < state / 2, "{buffers} {state}");
    let device = |more: &[&str]| {
        let sets = [&[BF16, "model.width=256", "model.layers=6", STATE][..], more].concat();
        let setup = prepare(config(GPT, &sets), Placement::Cpu).unwrap();
        plan(&setup, 0).unwrap().counters
    };
    let peak = |more: &[&str]| {
        let sets = ["model.context=256", "memory.recompute=block", "memory.offload=none"];
        device(&[&sets[..], more].concat()).get(Statistic::PeakBytes(device::Category::Activation))
    };
    let [kept, offloaded] = [peak(&[]), peak(&[ACTIVATIONS])];
    assert!(offloaded < kept, "{offloaded} {kept}");
    // Activations are back on the device at the end of a step; state never left it.
    let (_, on_device_still, none) = planned(&[ACTIVATIONS, "memory.recompute=block"]);
    assert_eq!((on_device_still, none), (on_device, 0));
    let [here, away] = [device(&[]), device(&[WEIGHTS])];
    let weights = here.get(Statistic::LiveBytes(device::Category::Parameter));
    let moved = away.get(Statistic::HostAllocatedBytes) - here.get(Statistic::HostAllocatedBytes);
    assert!(moved >= weights, "{moved} {weights}");
    // Two units of eight: one in use while the other is copied.
    assert!(away.get(Statistic::AllocatedBytes) < here.get(Statistic::AllocatedBytes) - weights / 4);
}

/// Settings that offload from a little to everything, with weights in each dtype.
const KINDS: &[(&str, &[&str])] = &[
    (GPT, &[STATE]),
    (GPT, &[WEIGHTS]),
    (GPT, &[WEIGHTS, FP8]),
    (GPT, &[ACTIVATIONS, "memory.recompute=block"]),
    (GPT, &[WEIGHTS, ACTIVATIONS, "memory.recompute=block"]),
    (LLAMA, &["lora.rank=4", "lora.base=nf4", STATE]),
    (LLAMA, &["lora.rank=4", "lora.base=nf4", ACTIVATIONS, "memory.recompute=block"]),
    (LLAMA, &["lora.rank=4", "lora.base=nf4", WEIGHTS]),
];

/// Checks on every device that the largest micro-batch that fits a limit trains in the planned bytes, and one
/// more sequence does not fit.
#[test]
fn the_largest_micro_batch_with_each_kind_of_offload_runs_and_the_next_does_not() {
    let sizes = [BF16, "model.width=64", "model.context=128", "train.steps=2", "parallel.lanes=1"];
    let devices = [(DeviceChoice::Cpu, true), (DeviceChoice::Cuda, gpu())];
    for device in devices.into_iter().filter_map(|(device, is_there)| is_there.then_some(device)) {
        let _alone = (device == DeviceChoice::Cuda).then(alone);
        for (text, kinds) in KINDS {
            let setup = |sequences: u64, limit: Option<u64>| {
                let counts = ["micro", "global"].map(|of| format!("train.{of}_batch_size={sequences}"));
                let limit = limit.map(|limit| format!("memory.limit_bytes={limit}"));
                let counts: Vec<&str> = counts.iter().chain(&limit).map(String::as_str).collect();
                let config = config(text, &[&sizes[..], kinds, &counts].concat());
                let placement = match device {
                    DeviceChoice::Cuda => Placement::one_gpu(0).unwrap(),
                    _ => Placement::Cpu,
                };
                prepare(config, placement).unwrap()
            };
            let needs = |sequences: u64| plan(&setup(sequences, None), 0).unwrap().statistics;
            let limit = needs(8).peak_reserved();
            let most =
                (8..64).take_while(|sequences| needs(*sequences).peak_reserved() <= limit).last().unwrap();
            let directory = tempfile::tempdir().unwrap();
            let config = (*setup(most, Some(limit)).config).clone();
            let report = train_in(&directory.path().join("run"), config, device).unwrap();
            assert_eq!(figures(&report.ranks[0]), planned(&needs(most)), "{most} of {kinds:?}");
            let next = setup(most + 1, Some(limit));
            let ran = Worker::new(&next, Communicator::solo()).and_then(|mut worker| worker.step(0));
            let error = ran.expect_err("more than the limit").to_string();
            assert!(error.contains("memory"), "{} of {kinds:?}: {error}", most + 1);
        }
    }
}
