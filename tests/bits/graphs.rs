//! Steps that are replayed as CUDA graphs have the losses and weights of steps whose calls are made one by
//! one.

use collective::Communicator;
use config::Graphs;
use worker::{DeviceChoice, Placement, Worker, never_captured};

use super::{BLOCK, alone, assert_equal_bits_on};
use crate::common::devices::gpu;
use crate::common::runs::{
    BOTTLENECKS, CORRECTED_EXPERTS, GPT, LATENTS, LLAMA, PACKED, RESNET, config, train,
};

const BF16: &str = "precision.compute=bf16";
const F16: &str = "precision.compute=f16";
const FP8: &str = "precision.matmul=fp8";
/// Both ways to run steps. Validations come between; a step that cannot be captured is an error.
const BOTH: &[&[&str]] = &[&["train.graphs=off"], &["train.graphs=on"]];
/// Nine steps with a learning rate of their own each, six of which are replayed or captured again.
const STEPS: [&str; 3] = ["train.steps=9", "train.validate_every=4", "parallel.data=1"];

/// Configurations that differ in what a step computes, and in what differs from step to step.
const ROWS: &[(&str, &[&str])] = &[
    (GPT, &["model.dropout=0.2"]),
    (GPT, &["model.dropout=0.2", "model.width=128", BF16, BLOCK]),
    (GPT, &["model.dropout=0.1", "model.width=128", F16, "optim.state=8bit"]),
    (GPT, &["model.width=128", BF16, FP8]),
    (
        GPT,
        &["model.width=128", BF16, "precision.weights=f32", "train.global_batch_size=2", "parallel.lanes=1"],
    ),
    (GPT, &["lora.rank=2", "lora.targets=['all-linear']", "lora.dropout=0.1", "model.width=128", BF16]),
    (GPT, &["memory.empty_cache_every=5", "optim.kind=lion"]),
    (LLAMA, &["model.width=256", "model.dropout=0.2", BF16, FP8, "precision.fp8_recipe=rowwise"]),
    (LLAMA, &["model.width=256", BF16, "model.qk_norm=true", "memory.allocator=backend:native"]),
    (RESNET, &[]),
    (RESNET, &[BF16]),
    (BOTTLENECKS, &[BF16, BLOCK]),
];

fn assert_equal_bits_with_graphs(text: &'static str, sets: &[&'static str]) {
    let common: Vec<&'static str> = [sets, &STEPS[..]].concat();
    assert_equal_bits_on(DeviceChoice::Cuda, &[(text, common.leak(), BOTH)], false);
}

#[test]
fn replayed_steps_have_the_bits_of_steps_call_by_call() {
    if gpu() {
        ROWS.iter().for_each(|(text, sets)| assert_equal_bits_with_graphs(text, sets));
    }
}

#[test]
fn replayed_steps_of_experts_and_latents_have_the_bits_of_steps_call_by_call() {
    if gpu() {
        for sets in [CORRECTED_EXPERTS, LATENTS] {
            assert_equal_bits_with_graphs(LLAMA, sets);
        }
    }
}

#[test]
fn replayed_steps_of_packed_documents_have_the_bits_of_steps_call_by_call() {
    if gpu() {
        assert_equal_bits_with_graphs(
            GPT,
            &[&PACKED[..], &["model.dropout=0.1", BF16, "model.width=128"]].concat(),
        );
    }
}

/// The first two steps make their calls, the third is captured, and all later ones are replayed.
#[test]
fn all_steps_after_the_third_are_replayed() {
    if !gpu() {
        return;
    }
    let _alone = alone(DeviceChoice::Cuda);
    for (text, sets) in ROWS.iter().filter(|(_, sets)| !sets.iter().any(|set| set.contains("empty_cache"))) {
        let sets = [sets, &STEPS[..], &["train.graphs=auto"]].concat();
        let setup = plan::prepare(config(text, &sets), Placement::one_gpu(0).unwrap()).unwrap();
        run::prepare_kernels(&setup).unwrap();
        let mut worker = Worker::new(&setup, Communicator::solo()).unwrap();
        for step in 0..9 {
            worker.step(step).unwrap();
            assert!(worker.scalars(step).unwrap().loss.is_finite());
            assert_eq!(worker.replayed_steps(), (step + 1).saturating_sub(3), "step {step} of {sets:?}");
        }
    }
}

#[test]
fn steps_that_are_never_captured_have_a_reason() {
    let reason = |sets: &[&str]| never_captured(&config(GPT, &[&["train.graphs=auto"], sets].concat()));
    assert_eq!(reason(&[]), None);
    for (sets, expected) in [
        (&["train.graphs=off"][..], "\"off\""),
        (&["parallel.data=2"], "several ranks"),
        (&["train.on_spike=skip"], "limit of the gradient norm"),
        (&["train.on_out_of_memory=halve_micro_batch"], "repeated"),
        (&["telemetry.hashes=2"], "hashed"),
        (&["optim.offload=true"], "offloaded"),
        (&["memory.offload=activations", "memory.recompute=block"], "offloaded"),
        (&["train.global_batch_size=256"], "64 micro-batches"),
    ] {
        let reason = reason(sets).unwrap_or_default();
        assert!(reason.contains(expected), "{sets:?}: {reason}");
    }
}

#[test]
fn graphs_change_nothing_on_the_cpu() {
    let run = |graphs: Graphs| train(GPT, &[&format!("train.graphs={}", graphs.name()), "train.steps=4"]);
    let [off, on] = [Graphs::Off, Graphs::On].map(|graphs| run(graphs).summary.weights_sha256);
    assert_eq!(off, on);
}
