//! Offloaded state: bytes of device and host.

use plan::{plan, prepare};
use telemetry::Statistic;
use worker::Placement;

use super::compare;
use crate::common::runs::{GPT, LLAMA, MLP, config};

const STATE: &str = "optim.offload=true";
const ACTIVATIONS: &str = "memory.offload=activations";
const WEIGHTS: &str = "memory.offload_weights=true";
const BF16: &str = "precision.compute=bf16";
const FP8: &str = "precision.matmul=fp8";

#[test]
fn plans_of_what_is_offloaded_equal_runs() {
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
        (GPT, &[WEIGHTS, STATE, BF16, FP8, "model.width=64", "parallel.data=2"]),
        (GPT, &[WEIGHTS, STATE, BF16, FP8, "model.width=64", "parallel.data=2", "parallel.zero_stage=3"]),
    ];
    for (text, sets) in table {
        compare(text, &[&["train.steps=2"][..], sets].concat());
    }
}

/// The host holds the state that the device no longer has, and the device the buffers.
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
    // Activations are back on the device when a step has ended, and state never left it.
    let (_, on_device_still, none) = planned(&[ACTIVATIONS, "memory.recompute=block"]);
    assert_eq!((on_device_still, none), (on_device, 0));
    let [here, away] = [device(&[]), device(&[WEIGHTS])];
    let weights = here.get(Statistic::LiveBytes(device::Category::Parameter));
    let moved = away.get(Statistic::HostAllocatedBytes) - here.get(Statistic::HostAllocatedBytes);
    assert!(moved >= weights, "{moved} {weights}");
    // Two units of eight, one of which is used while the other is copied.
    assert!(away.get(Statistic::AllocatedBytes) < here.get(Statistic::AllocatedBytes) - weights / 4);
}
