//! Tests that steps replayed as CUDA graphs have the losses and weights of steps without graphs, and replayed
//! decode steps the same tokens.

use collective::Communicator;
use config::Graphs;
use device::{CopyKind, Description, Kind, LoggedCall, StreamKind};
use generation::{Generator, GeneratorBytes, GeneratorOptions, Line};
use tensor::ops::choose::Choice;
use worker::{DeviceChoice, Placement, Setup, Worker, never_captured};

use super::{BLOCK, INTERLEAVED, LANES, PAIRS, SHARDED, ZERO_2, ZERO_3, ZERO_BUBBLE, alone, check_on};
use crate::common::devices::{gpu, own_gpus};
use crate::common::runs::{
    BIASED_EXPERTS, BOTTLENECKS, CHAT, CORRECTED_EXPERTS, GPT, LATENTS, LLAMA, PACKED, RESNET,
    WINDOWS_AND_CAPS, WINDOWS_AND_FACTORS, config, train,
};

const BF16: &str = "precision.compute=bf16";
const F16: &str = "precision.compute=f16";
const FP8: &str = "precision.matmul=fp8";
/// Both ways to run steps. Validations are in between; a step that cannot be captured is an error.
const BOTH: &[&[&str]] = &[&["train.graphs=off"], &["train.graphs=on"]];
/// Nine steps, each with a different learning rate. Six are replayed or captured again.
const STEPS: [&str; 3] = ["train.steps=9", "train.validate_every=4", "parallel.data=1"];

/// Configurations that differ in what a step computes, and in what varies from step to step.
const ROWS: &[(&str, &[&str])] = &[
    (GPT, &["model.dropout=0.2"]),
    (GPT, &["train.neftune_alpha=5", "model.width=128", BF16]),
    (GPT, &["model.dropout=0.2", "model.width=128", BF16, BLOCK]),
    (GPT, &["model.dropout=0.1", "model.width=128", F16, "optim.state=8bit"]),
    (GPT, &["model.width=128", BF16, FP8]),
    (
        GPT,
        &["model.width=128", BF16, "precision.weights=f32", "train.global_batch_size=2", "parallel.lanes=1"],
    ),
    (GPT, &["lora.rank=2", "lora.targets=['all-linear']", "lora.dropout=0.1", "model.width=128", BF16]),
    (GPT, &["memory.empty_cache_every=5", "optim.kind=lion"]),
    (LLAMA, &["model.width=256", "optim.kind=muon", "optim.state=8bit", BF16]),
    (GPT, &["train.ema=0.9", "train.ema_start=3", "train.ema_every=2", "train.validate_ema=true"]),
    (GPT, &["model.width=128", BF16, "train.ema=0.9", "train.validate_ema=true"]),
    (LLAMA, &["model.width=256", "model.dropout=0.2", BF16, FP8, "precision.fp8_recipe=rowwise"]),
    (LLAMA, &["model.width=256", BF16, "model.qk_norm=true", "memory.allocator=backend:native"]),
    (RESNET, &[]),
    (RESNET, &[BF16]),
    (BOTTLENECKS, &[BF16, BLOCK]),
];

fn check_with_graphs(text: &'static str, sets: &[&'static str]) {
    let common: Vec<&'static str> = [sets, &STEPS[..]].concat();
    check_on(DeviceChoice::Cuda, &[(text, &common, BOTH)], false);
}

#[test]
fn replayed_steps_have_the_bits_of_steps_call_by_call() {
    if gpu() {
        ROWS.iter().for_each(|(text, sets)| check_with_graphs(text, sets));
    }
}

/// Grids with one GPU per rank.
const GRIDS: &[&[&str]] = &[
    &["parallel.data=2"],
    &["parallel.data=2", SHARDED],
    &["parallel.data=2", ZERO_2, BLOCK],
    &["parallel.data=2", ZERO_3],
    &["parallel.pipeline=2"],
    &["parallel.pipeline=2", ZERO_BUBBLE],
    &["parallel.data=4", ZERO_3, "parallel.peer_access=off"],
    &["parallel.data=4", SHARDED, PAIRS, "parallel.peer_access=off"],
    &["parallel.data=2", "parallel.pipeline=2", INTERLEAVED, SHARDED],
];
/// Grids that also have tensor parallelism.
const DIVIDING: &[&[&str]] = &[
    &["parallel.tensor=2"],
    &["parallel.data=2", "parallel.tensor=2", ZERO_3],
    &["parallel.pipeline=2", "parallel.tensor=2"],
];
/// Models, and whether they support tensor parallelism.
const RANKS: &[(&str, &[&str], bool)] = &[
    (GPT, &["model.layers=4", "model.heads=4", "model.dropout=0.2", LANES], true),
    (GPT, &["model.layers=4", "model.width=128", BF16, "precision.gradients=bf16"], false),
    (LLAMA, &["model.width=256", BF16, FP8], false),
    (LLAMA, &["model.width=256", "model.key_value_heads=4", LANES, BF16, "optim.kind=muon"], true),
];

#[test]
fn replayed_steps_of_ranks_have_the_bits_of_steps_call_by_call() {
    let gpus = if gpu() { own_gpus() } else { 0 };
    for (text, sets, are_divided) in RANKS {
        let grids = GRIDS.iter().chain(DIVIDING.iter().filter(|_| *are_divided));
        let fits = |grid: &&&[&str]| config(text, &[sets, **grid].concat()).world_size() <= gpus;
        let on = |grid: &[&'static str]| -> &'static [&'static str] {
            [grid, &["train.graphs=on"]].concat().leak()
        };
        let first = std::iter::once(&["train.graphs=off"][..]);
        let rows: Vec<_> = first.chain(grids.filter(fits).map(|grid| on(grid))).collect();
        let common: Vec<&'static str> = [*sets, &STEPS[..]].concat();
        if gpus > 0 {
            check_on(DeviceChoice::Cuda, &[(text, &common, &rows)], false);
        }
    }
}

#[test]
fn replayed_steps_of_experts_and_latents_have_the_bits_of_steps_call_by_call() {
    if gpu() {
        for sets in [CORRECTED_EXPERTS, LATENTS] {
            check_with_graphs(LLAMA, sets);
        }
    }
}

/// Checks steps whose losses are divided by numbers that vary from step to step.
#[test]
fn replayed_steps_of_masked_targets_have_the_bits_of_steps_call_by_call() {
    if gpu() {
        let experts: &[&str] = &["model.kind=llama", "model.key_value_heads=2"];
        check_with_graphs(CHAT, &["model.width=128", BF16]);
        check_with_graphs(CHAT, &["model.loss_pieces=3", "model.tied=false"]);
        check_with_graphs(CHAT, &["model.width=128", BF16, "data.group_by_length=true", "model.dropout=0.1"]);
        check_with_graphs(CHAT, &[experts, CORRECTED_EXPERTS].concat());
    }
}

#[test]
fn replayed_steps_of_packed_documents_have_the_bits_of_steps_call_by_call() {
    if gpu() {
        check_with_graphs(GPT, &[&PACKED[..], &["model.dropout=0.1", BF16, "model.width=128"]].concat());
    }
}

/// Checks that the first two steps make their calls, the third is captured, and all later ones are replayed.
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

/// Uses validations of seven micro-batches between steps: the first micro-batch makes arrays that others
/// reuse, and the third of the first validation is captured.
#[test]
fn replayed_validations_have_the_losses_of_passes_call_by_call() {
    if !gpu() {
        return;
    }
    let _alone = alone(DeviceChoice::Cuda);
    let packed: &[&str] = &[&PACKED[..], &[BF16, "model.width=128"]].concat();
    for (text, sets) in ROWS.iter().chain(&[(LLAMA, CORRECTED_EXPERTS), (LLAMA, LATENTS), (GPT, packed)]) {
        let validated = |graphs: &str| {
            let sets = [sets, &STEPS[..], &["train.validation_micro_batches=7", graphs]].concat();
            let setup = plan::prepare(config(text, &sets), Placement::one_gpu(0).unwrap()).unwrap();
            run::prepare_kernels(&setup).unwrap();
            let mut worker = Worker::new(&setup, Communicator::solo()).unwrap();
            let mut losses = Vec::new();
            for step in 0..6 {
                worker.step(step).unwrap();
                losses.push((worker.validate().unwrap(), worker.scalars(step).unwrap().loss));
            }
            (losses, worker.memory(), worker.replayed_validations())
        };
        let plain = validated("train.graphs=off");
        let replayed = validated("train.graphs=auto");
        assert_eq!((&replayed.0, &replayed.1), (&plain.0, &plain.1), "{sets:?}");
        assert!(plain.2 == 0 && replayed.2 >= 20, "{} micro-batches are replayed: {sets:?}", replayed.2);
    }
}

#[test]
fn steps_that_are_never_captured_have_a_reason() {
    let reason = |sets: &[&str]| never_captured(&config(GPT, &[&["train.graphs=auto"], sets].concat()));
    for sets in [&[][..], &["parallel.data=2", ZERO_3], &["parallel.pipeline=2"], &["parallel.tensor=2"]] {
        assert_eq!(reason(sets), None, "{sets:?}");
    }
    for (sets, expected) in [
        (&["train.graphs=off"][..], "\"off\""),
        (&["parallel.data=2", "parallel.ranks_per_device=2"], "share a GPU"),
        (&["parallel.context=2"], "in pieces"),
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

const LIKELIEST: Choice = Choice { temperature: 0.0, top_k: 0, top_p: 1.0, repetition_penalty: 1.0 };
const DRAWN: Choice = Choice { temperature: 1.0, ..LIKELIEST };
const LIMITED: Choice = Choice { top_k: 40, top_p: 0.9, ..DRAWN };
const PENALISED: Choice = Choice { repetition_penalty: 1.3, ..LIMITED };

/// Settings with head widths that have bf16 kernels.
const GPT_IN_BF16: &[&str] = &[BF16, "model.width=128"];
const LLAMA_IN_BF16: &[&str] = &[BF16, "model.width=256"];
const QWEN: &[&str] = &["model.qkv_bias=true", "model.qk_norm=true", "model.tied=true"];

/// Models in bf16, whose decode steps are captured, and choices of tokens.
const DECODED: &[(&str, &[&[&str]], Choice)] = &[
    (GPT, &[GPT_IN_BF16], LIKELIEST),
    (GPT, &[GPT_IN_BF16, &["memory.allocator=backend:native"]], PENALISED),
    (LLAMA, &[LLAMA_IN_BF16], DRAWN),
    (LLAMA, &[LLAMA_IN_BF16], PENALISED),
    (LLAMA, &[LLAMA_IN_BF16, QWEN], LIMITED),
    (LLAMA, &[LLAMA_IN_BF16, WINDOWS_AND_CAPS], PENALISED),
    (LLAMA, &[LLAMA_IN_BF16, &["lora.rank=2", "lora.targets=['all-linear']"]], DRAWN),
];
/// Models whose decode steps are captured if the library supports capturing f32 matmuls, and otherwise make
/// their calls.
const DECODED_IN_F32: &[(&str, &[&[&str]], Choice)] = &[
    (GPT, &[], PENALISED),
    (LLAMA, &[], DRAWN),
    (LLAMA, &[WINDOWS_AND_CAPS], LIMITED),
    (LLAMA, &[WINDOWS_AND_FACTORS], DRAWN),
    (LLAMA, &[CORRECTED_EXPERTS], PENALISED),
    (LLAMA, &[BIASED_EXPERTS], DRAWN),
    (LLAMA, &[LATENTS], LIMITED),
];

/// Maximum number of tokens in a slot.
const CAPACITY: usize = 32;
/// Number of decode steps in a test.
const DECODE_STEPS: usize = 40;
/// Texts in three slots: slot, first and last step, number of prompt tokens. One joins beside another, one
/// follows in the same slot, one starts after steps without any text, and one exceeds the capacity.
const TEXTS: [(usize, [usize; 2], usize); 5] =
    [(0, [0, 39], 6), (1, [5, 9], 17), (1, [10, 20], 3), (1, [30, 39], 1), (2, [12, 25], 20)];

/// Results of a model's decode steps.
#[derive(Debug, PartialEq)]
struct Decoded {
    /// Tokens of each text, with its prompt.
    texts: Vec<Vec<u32>>,
    bytes: GeneratorBytes,
}

/// Decodes [`TEXTS`] with random weights. Returns the results and the number of replayed steps.
fn decoded(text: &str, sets: &[&[&str]], choice: Choice, graphs: Graphs) -> (Decoded, u64) {
    let graphs = format!("train.graphs={}", graphs.name());
    let sets = [&sets.concat()[..], &["parallel.data=1", &graphs]].concat();
    let setup = plan::prepare(config(text, &sets), Placement::one_gpu(0).unwrap()).unwrap();
    run::prepare_kernels(&setup).unwrap();
    let options = GeneratorOptions { slots: 3, capacity: CAPACITY, longest: CAPACITY - 8, choice };
    let mut generator = Generator::new(&setup, Communicator::solo(), options, None).unwrap();
    let prompt = |length: usize| (0..length).map(|at| (length * 31 + at * 7) as u32 % 251).collect();
    let mut texts: Vec<Vec<u32>> = TEXTS.iter().map(|(_, _, length)| prompt(*length)).collect();
    // First token that each text's slot sees; a text that is too long is read again from a later token.
    let mut starts = [0; TEXTS.len()];
    for step in 0..DECODE_STEPS {
        let mut lines = vec![None; options.slots];
        for (index, (slot, [first, last], _)) in TEXTS.into_iter().enumerate() {
            if !(first..=last).contains(&step) {
                continue;
            }
            let is_late = texts[index].len() - starts[index] > CAPACITY;
            starts[index] += if is_late { 16 } else { 0 };
            lines[slot] = Some(Line {
                tokens: &texts[index][starts[index]..],
                is_new: step == first || is_late,
                seen: (step == first).then_some(&texts[index]),
                number: (step - first) as u32,
                key: [index as u32, 5],
            });
        }
        let chosen = generator.step(&[lines]).unwrap().concat();
        for (text, (slot, [first, last], _)) in texts.iter_mut().zip(TEXTS) {
            if (first..=last).contains(&step) {
                text.push(chosen[slot]);
            }
        }
    }
    (Decoded { texts, bytes: generator.bytes() }, generator.replayed_steps())
}

/// Returns whether a call can be part of a graph, which requires the compute stream.
fn is_capturable(call: &LoggedCall) -> bool {
    match call {
        LoggedCall::Kernel(kernel) => kernel.stream == StreamKind::Compute,
        LoggedCall::Matmul { .. } => true,
        LoggedCall::Copy { kind: CopyKind::Within | CopyKind::Zero, stream, .. } => {
            *stream == StreamKind::Compute
        }
        _ => false,
    }
}

/// Returns the setup of a model on a Meta device that imitates a GPU.
fn imitated(text: &str, sets: &[&str]) -> Setup {
    let gpu = Description { kind: Kind::Cuda, compute_capability: (9, 0), ..Description::host() };
    plan::prepare(config(text, sets), Placement::Meta(gpu)).unwrap()
}

#[test]
fn decode_steps_that_are_never_captured_are_refused_where_graphs_are_demanded() {
    let options = GeneratorOptions { slots: 1, capacity: CAPACITY, longest: 9, choice: DRAWN };
    for (text, sets, expected) in [
        (GPT, &["parallel.data=2"][..], Some("several ranks")),
        (GPT, &["parallel.pipeline=2"], Some("several ranks")),
        (GPT, &["memory.offload_weights=true"], Some("gathered as they are used")),
        (GPT, &["train.global_batch_size=256"], None),
        (LLAMA, &["optim.offload=true"], None),
    ] {
        let setup = imitated(text, &[&["train.graphs=on"], sets].concat());
        let communicator = Communicator::counted(0, setup.config.world_size());
        let refused = Generator::new(&setup, communicator, options, None).err();
        let refused = refused.map(|error| error.to_string());
        let is_expected = match (&refused, expected) {
            (Some(text), Some(reason)) => text.contains("decode steps cannot") && text.contains(reason),
            (refused, expected) => refused.is_none() && expected.is_none(),
        };
        assert!(is_expected, "{sets:?}: {refused:?}");
    }
}

/// Compares with the calls of a Meta device.
#[test]
fn decode_steps_only_make_calls_that_can_be_captured() {
    for (text, sets, choice) in DECODED.iter().chain(DECODED_IN_F32) {
        let setup = imitated(text, &[&sets.concat()[..], &["parallel.data=1"]].concat());
        let options = GeneratorOptions { slots: 3, capacity: CAPACITY, longest: 9, choice: *choice };
        let mut generator = Generator::new(&setup, Communicator::solo(), options, None).unwrap();
        let line = Line { tokens: &[1, 2, 3], is_new: false, seen: None, number: 2, key: [1, 2] };
        generator.device().begin_log();
        generator.step(&[vec![Some(line), None]]).unwrap();
        let log = generator.device().end_log();
        let [LoggedCall::Copy { kind: CopyKind::FromHost, .. }, calls @ .., last] = &log.calls[..] else {
            panic!("{:?}", log.calls);
        };
        assert!(matches!(last, LoggedCall::Copy { kind: CopyKind::ToHost, .. }), "{last:?}");
        let other = calls.iter().find(|call| !is_capturable(call));
        assert!(other.is_none() && calls.len() > 10, "{sets:?}: {other:?}");
    }
}

/// Asserts that decode steps with `graphs` give the texts and bytes of steps made call by call. Returns the
/// numbers of replayed steps.
fn assert_equal_texts(table: &[(&str, &[&[&str]], Choice)], graphs: Graphs) -> Vec<u64> {
    let _alone = alone(DeviceChoice::Cuda);
    let replays = table.iter().map(|(text, sets, choice)| {
        let (plain, none) = decoded(text, sets, *choice, Graphs::Off);
        let (captured, replays) = decoded(text, sets, *choice, graphs);
        assert_eq!(captured, plain, "{sets:?} {choice:?}");
        assert_eq!(none, 0, "{sets:?}");
        replays
    });
    replays.collect()
}

#[test]
fn replayed_decode_steps_have_the_texts_of_steps_call_by_call() {
    if gpu() {
        let replays = assert_equal_texts(DECODED, Graphs::On);
        // A step is captured as soon as two consecutive ones began with the same memory.
        let expected = DECODE_STEPS as u64 - 3;
        assert!(replays.iter().all(|replays| *replays >= expected), "{replays:?} of {expected}");
    }
}

#[test]
fn decode_steps_in_f32_have_equal_texts_whether_they_can_be_captured_or_not() {
    if gpu() {
        assert_equal_texts(DECODED_IN_F32, Graphs::Auto);
    }
}
