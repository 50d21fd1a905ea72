//! Tests of the calls of a step, logged by the worker on Meta.

use std::collections::BTreeMap;

use crate::common::{GPT, MLP, setup_from};
use collective::{AxisTraffic, Communicator, PEER_SUMS};
use device::{CallLog, LoggedCall, Statistics};
use plan::{CallSizes, PlanDevice, predicted_calls, step_calls, with_peers};
use worker::{Setup, Worker};

const LLAMA: &str = "[model]
kind = \"llama\"
layers = 2
heads = 4
key_value_heads = 2
width = 128
feed_forward = 256
context = 64
vocabulary = 128
[data]
kind = \"synthetic\"
[train]
micro_batch_size = 1
global_batch_size = 4
[parallel]
bucket_bytes = 16384
lanes = 4
[precision]
compute = \"bf16\"
";

const RESNET: &str = "[model]
kind = \"resnet\"
depth = 18
image_size = 32
[data]
kind = \"synthetic\"
[train]
micro_batch_size = 4
global_batch_size = 8
[precision]
compute = \"bf16\"
";

/// Returns configurations of all kinds of models, dtypes and grids.
fn table() -> Vec<(&'static str, Vec<&'static str>)> {
    let few = ["train.global_batch_size=8", "parallel.lanes=4"];
    let gpt = |sets: &[&'static str]| (GPT, [&few[..], sets].concat());
    let llama = |sets: &[&'static str]| (LLAMA, sets.to_vec());
    vec![
        gpt(&[]),
        gpt(&["precision.compute=f16", "model.dropout=0.1", "train.neftune_alpha=5"]),
        gpt(&["memory.recompute=block"]),
        gpt(&["parallel.data=2"]),
        gpt(&["parallel.data=2", "parallel.zero_stage=1"]),
        gpt(&["parallel.data=2", "parallel.zero_stage=2"]),
        gpt(&["parallel.data=2", "parallel.zero_stage=3"]),
        gpt(&["parallel.pipeline=2"]),
        gpt(&["parallel.tensor=2", "parallel.tensor_lanes=2"]),
        gpt(&["parallel.context=2", "parallel.context_lanes=4"]),
        llama(&[]),
        llama(&["precision.matmul=fp8"]),
        llama(&["lora.rank=4"]),
        llama(&["optim.kind=lion"]),
        (MLP, vec!["train.micro_batch_size=4", "train.global_batch_size=8"]),
        (RESNET, vec![]),
    ]
}

struct Ran {
    log: CallLog,
    /// FLOPs that operators counted in the step for matmuls, convolutions and attention.
    flops: u64,
    traffic: AxisTraffic,
    statistics: Statistics,
}

/// Runs three steps; logs the last one if `logs`.
fn run(setup: &Setup, logs: bool) -> Ran {
    let communicator = Communicator::counted(0, setup.config.world_size());
    let mut worker = Worker::new(&setup.on_meta(), communicator).unwrap();
    let device = worker.device().clone();
    let begin = || {
        if logs {
            device.begin_log();
        }
    };
    for step in 0..2 {
        begin();
        worker.step(step).unwrap();
    }
    begin();
    let flops = device.flops();
    let traffic = worker.traffic_by_axis();
    worker.step(2).unwrap();
    let flops = device.flops() - flops;
    let traffic = worker.traffic_by_axis() - traffic;
    Ran { log: device.end_log(), flops, traffic, statistics: device.statistics() }
}

/// Returns the number of calls of each kind.
fn kinds(log: &CallLog) -> BTreeMap<String, usize> {
    let mut kinds = BTreeMap::new();
    let sizes = CallSizes::new(8, 132, false);
    log.for_each(|call| {
        if let Some(size) = sizes.size(call) {
            *kinds.entry(size.kind).or_default() += 1;
        }
    });
    kinds
}

/// Returns the FLOPs of matmul, convolution and attention calls as operators count them: attention's backward
/// kernels compute seven matmuls where five are needed.
fn counted_flops(log: &CallLog) -> u64 {
    let (mut flops, mut backward) = (0, 0);
    log.for_each(|call| match call {
        LoggedCall::Matmul { .. } | LoggedCall::Convolution { .. } => flops += call.work().flops,
        LoggedCall::Kernel(kernel) if kernel.function.family().name.starts_with("attention") => {
            match kernel.function.symbol().starts_with("backward") {
                true => backward += call.work().flops,
                false => flops += call.work().flops,
            }
        }
        _ => {}
    });
    flops + backward / 7 * 5
}

/// Returns the bytes sent by all communication in a log.
fn sent_bytes(log: &CallLog) -> u64 {
    let mut sent = 0;
    log.for_each(|call| {
        let LoggedCall::Communication(call) = call else { return };
        let ranks = call.ranks.len() as u64;
        let messages = call.sends.iter().map(|(_, bytes)| bytes);
        sent += match call.operation {
            "all-reduce" => 2 * call.bytes * (ranks - 1) / ranks,
            "reduce-scatter" | "all-gather" | PEER_SUMS => call.bytes * (ranks - 1) / ranks,
            _ => messages.sum::<u64>(),
        };
    });
    sent
}

#[test]
fn a_log_has_the_work_of_a_step_and_changes_no_byte() {
    for (text, sets) in table() {
        let setup = setup_from(text, true, &sets);
        let logged = run(&setup, true);
        let plain = run(&setup, false);
        assert_eq!(logged.statistics, plain.statistics, "{sets:?}");
        assert_eq!((logged.flops, logged.traffic), (plain.flops, plain.traffic), "{sets:?}");
        // Convolutions with few channels multiply zeros at the ends of their windows.
        let zeros = if text == RESNET { logged.flops / 500 } else { 0 };
        let more = counted_flops(&logged.log).checked_sub(logged.flops);
        assert!(more.is_some_and(|more| more <= zeros), "{more:?} more FLOPs than counted, {sets:?}");
        assert_eq!(sent_bytes(&logged.log), logged.traffic.total().bytes_sent, "{sets:?}");
        assert!(plain.log.calls.is_empty(), "{sets:?}");
    }
}

/// Checks that GPUs of one host sum in each other's memory, and exchange the same bytes.
#[test]
fn access_to_peers_changes_calls_and_no_byte() {
    let few = ["train.global_batch_size=8", "parallel.lanes=4", "parallel.data=4"];
    for (sets, has_peers) in [
        (&[][..], true),
        (&["parallel.zero_stage=1"], true),
        (&["parallel.zero_stage=2"], false),
        (&["parallel.zero_stage=3"], false),
        (&["parallel.peer_access=off"], false),
        (&["parallel.data=16", "parallel.lanes=16", "train.global_batch_size=32"], false),
    ] {
        let setup = setup_from(GPT, true, &[&few[..], sets].concat());
        let linked = with_peers(&setup, &PlanDevice::shipped().unwrap());
        let [apart, linked] = [setup, linked].map(|setup| run(&setup, true));
        assert_eq!(linked.statistics, apart.statistics, "{sets:?}");
        assert_eq!(linked.traffic, apart.traffic, "{sets:?}");
        assert_eq!(sent_bytes(&linked.log), linked.traffic.total().bytes_sent, "{sets:?}");
        let calls = kinds(&linked.log);
        assert_eq!(calls.contains_key(PEER_SUMS), has_peers, "{sets:?}: {calls:?}");
        assert!(!kinds(&apart.log).contains_key(PEER_SUMS), "{sets:?}");
    }
}

#[test]
fn the_log_of_a_plan_is_that_of_a_run() {
    let sets = ["train.global_batch_size=64", "parallel.lanes=4"];
    let setup = setup_from(GPT, true, &sets);
    let planned = step_calls(&setup, 0).unwrap();
    let ran = run(&setup, true).log;
    // A plan skips micro-batches that repeat earlier ones.
    assert!(!planned.repeated.is_empty() && planned.calls.len() < ran.calls.len());
    assert_eq!(kinds(&planned), kinds(&ran));
    assert_eq!(planned.flops(), ran.flops());
    // A host has no calls to log.
    assert!(step_calls(&setup_from(GPT, false, &sets), 0).unwrap().calls.is_empty());
}

#[test]
fn recomputation_and_ranks_add_their_calls() {
    let few = ["train.global_batch_size=8", "parallel.lanes=4"];
    let step_kinds =
        |sets: &[&str]| kinds(&run(&setup_from(GPT, true, &[&few[..], sets].concat()), true).log);
    let plain = step_kinds(&[]);
    let again = step_kinds(&["memory.recompute=block"]);
    let forward = |kinds: &BTreeMap<String, usize>, kind: &str| {
        let of_kind = kinds.iter().filter(|(name, _)| name.starts_with(kind));
        of_kind.map(|(_, count)| *count).sum::<usize>()
    };
    // Recomputation runs two layers of each of four micro-batches twice.
    for (kind, runs) in [("attention_f32.forward", 8), ("layer_norm.forward", 20), ("activation.gelu_f", 8)] {
        assert_eq!(forward(&plain, kind), runs, "{kind} in {plain:?}");
        assert!(forward(&again, kind) >= runs + 8, "{kind} in {again:?}");
    }
    assert_eq!(forward(&plain, "attention_f32.backward"), forward(&again, "attention_f32.backward"));
    let data = step_kinds(&["parallel.data=2"]);
    let weights = step_kinds(&["parallel.data=2", "parallel.zero_stage=3"]);
    assert_eq!(forward(&plain, "exchange") + forward(&plain, "all-gather"), 0);
    assert!(forward(&data, "exchange") > 0 && forward(&data, "tree") > 0, "{data:?}");
    assert!(forward(&weights, "all-gather") > forward(&weights, "exchange"), "{weights:?}");
    let stages = step_kinds(&["parallel.pipeline=2"]);
    // Four activations, four gradients, and the norm's share.
    assert_eq!(forward(&stages, "send"), 9, "{stages:?}");
}

/// Gradients of later micro-batches are added, so their kernels read them too, and take at least that long.
#[test]
fn added_gradients_are_read() {
    let twice = ["train.global_batch_size=8"];
    let experts = ["model.experts=8", "model.experts_per_token=2", "model.expert_width=256", twice[0]];
    let device = PlanDevice::shipped().unwrap();
    let memory = device.rates.as_ref().unwrap().memory_bytes;
    for (text, sets, kind, rows) in [
        (LLAMA, &experts[..], "experts_hopper.backward_weight", None),
        (RESNET, &["precision.compute=f32"], "convolution f32 backward weight 3x3 1", None),
        // Gradients are added to at most 64 of 128 rows, one for each token.
        (LLAMA, &twice, "embedding.rare_rows", Some(64)),
    ] {
        let setup = setup_from(text, true, sets);
        let mut bytes: BTreeMap<[u64; 2], Vec<f64>> = BTreeMap::new();
        for (call, seconds) in predicted_calls(&setup, &device, 0).unwrap() {
            let Some(size) =
                CallSizes::new(8, 132, false).size(&call).filter(|size| size.kind.starts_with(kind))
            else {
                continue;
            };
            let [units, moved, flops] = size.size;
            assert!(seconds > moved / memory, "{size:?}: {seconds}");
            bytes.entry([units, flops].map(f64::to_bits)).or_default().push(moved);
        }
        assert!(!bytes.is_empty(), "{kind}");
        for moved in bytes.values() {
            let [least, most] = [f64::min, f64::max].map(|pick| moved.iter().copied().reduce(pick).unwrap());
            match rows {
                None => assert!(most > least && most < 2.0 * least, "{kind}: {moved:?}"),
                Some(rows) => {
                    // Rows of 128 elements: inputs in bf16, and gradients in f32, read and written.
                    let row = 128.0 * 4.0;
                    let inputs = f64::from(rows) * row / 2.0;
                    assert_eq!([least, most], [inputs + 128.0 * row, inputs + 2.0 * f64::from(rows) * row]);
                }
            }
        }
    }
}
