//! Captured steps on Meta, where graphs are empty: a replayed step leaves every counter, peak and event of
//! the allocator as the computed step does.

use collective::Communicator;
use telemetry::RankStep;
use telemetry::step_trace::RunPart;

use super::super::Worker;
use crate::graphs::refusals::never_captured_evaluation;
use crate::imitated_gpu;
use crate::validation::Evaluation;

const REST: &str = "[data]\nkind = \"synthetic\"\n[train]\nsteps = 12\nmicro_batch_size = 2\n\
                    global_batch_size = 6\nvalidation_micro_batches = 6\n";
const GPT: &str =
    "[model]\nkind = \"gpt\"\nlayers = 3\nheads = 2\nwidth = 64\ncontext = 32\nvocabulary = 100\n";
const RESNET: &str = "[model]\nkind = \"resnet\"\ndepth = 18\nwidth = 0.125\nimage_size = 32\nclasses = 10\n";

/// Models with settings that affect a step's allocations.
const CASES: &[(&str, &[&str])] = &[
    (GPT, &[]),
    (GPT, &["model.dropout=0.2", "memory.recompute=block", "precision.compute=bf16"]),
    (GPT, &["precision.compute=bf16", "precision.matmul=fp8", "memory.allocator=backend:native"]),
    (GPT, &["precision.compute=f16", "optim.state=8bit", "memory.allocator=max_split_size_mb:20"]),
    (GPT, &["lora.rank=4", "memory.empty_cache_every=5"]),
    (GPT, &["precision.compute=bf16", "train.ema=0.9", "train.ema_every=2", "train.validate_ema=true"]),
    (RESNET, &["precision.compute=bf16"]),
];

/// Settings with several ranks; the last rank is tested.
const RANKS: &[&[&str]] = &[
    &["parallel.data=2", "parallel.lanes=2"],
    &["parallel.data=2", "parallel.zero_stage=1", "precision.gradients=bf16", "precision.compute=bf16"],
    &["parallel.data=2", "parallel.zero_stage=2"],
    &["parallel.data=2", "parallel.zero_stage=1", "train.ema=0.9", "train.validate_ema=true"],
    &["parallel.data=2", "parallel.zero_stage=3", "precision.compute=bf16", "precision.matmul=fp8"],
    &["parallel.pipeline=2", "parallel.schedule=1f1b"],
    &["parallel.pipeline=3", "parallel.data=2", "parallel.schedule=zero-bubble"],
    &["parallel.tensor=2"],
];

fn worker(text: &str, sets: &[&str], captures: bool) -> Worker {
    let setup = imitated_gpu::setup(&format!("{text}{REST}"), sets);
    let communicator = match setup.config.world_size() {
        1 => Communicator::solo(),
        ranks => Communicator::counted(ranks - 1, ranks),
    };
    let mut worker = Worker::new(&setup, communicator).unwrap();
    worker.device().with_allocator(|allocator| allocator.start_digest());
    if captures {
        worker.graphs.capture_on_meta();
        if never_captured_evaluation(&setup.config).is_none() {
            let evaluation = Evaluation::new(&worker.engine.device, &setup.config).unwrap();
            worker.engine.evaluation.insert(evaluation).capture_on_meta();
        }
    }
    worker
}

/// Returns the statistics after a step or validation, and the digest of its allocations and frees.
fn figures(worker: &mut Worker) -> (String, u64, RankStep) {
    let traffic = worker.engine.groups.traffic();
    let calls = worker.device().stream_calls();
    let (digest, events, statistics) = worker.device().with_allocator(|allocator| {
        let events = allocator.events().len();
        (allocator.take_digest(), events, allocator.statistics().clone())
    });
    let flops = worker.device().flops();
    let text = format!("{:?} {statistics:?} {events} {flops} {traffic:?} {calls}", worker.memory());
    (text, digest, worker.records.phases.record().unwrap())
}

#[test]
fn replayed_steps_allocate_what_steps_allocate() {
    for (text, sets) in CASES {
        let replayed = compare(text, sets);
        // The steps after an emptied cache, and after a validation that moved blocks, make their calls.
        assert!((4..=9).contains(&replayed), "{replayed} replays of {sets:?}");
    }
}

#[test]
fn replayed_steps_of_ranks_make_their_calls() {
    for sets in RANKS {
        let sets = [*sets, &["train.global_batch_size=8"]].concat();
        let replayed = compare(GPT, &sets);
        assert!((4..=9).contains(&replayed), "{replayed} replays of {sets:?}");
    }
}

/// The calls of an abandoned capture are made again, and only then counted in the FLOPs.
#[test]
fn an_abandoned_capture_counts_no_flops() {
    let mut worker = worker(GPT, &[], false);
    worker.step(0).unwrap();
    let device = worker.device().clone();
    let before = worker.device().flops();
    let recorder = worker.engine.recorder.clone();
    recorder.start().unwrap();
    worker.step(1).unwrap();
    let counted = device.flops();
    recorder.abandon();
    assert!(counted > before && device.flops() == before, "{before} {counted} {}", device.flops());
}

/// Compares steps with and without capture, and returns how many were replayed.
fn compare(text: &str, sets: &[&str]) -> u64 {
    let mut workers = [worker(text, sets, false), worker(text, sets, true)];
    for step in 0..12 {
        let after_step = workers.each_mut().map(|worker| {
            worker.step(step).unwrap();
            worker.check_plan(RunPart::Step, step + 1).unwrap();
            figures(worker)
        });
        assert_eq!(after_step[1], after_step[0], "step {step} of {sets:?}");
        // Memory of validations changes the addresses of later steps.
        if step == 3 {
            assert_eq!(workers[1].replayed_steps(), 1, "{sets:?}");
        }
        if step % 4 == 3 {
            let after_validation = workers.each_mut().map(|worker| {
                worker.validate().unwrap();
                figures(worker)
            });
            assert_eq!(after_validation[1], after_validation[0], "{sets:?}");
        }
    }
    let [plain, replayed] = workers.each_ref().map(Worker::replayed_steps);
    assert_eq!(plain, 0, "{sets:?}");
    // Of six micro-batches of each validation, the first makes what others use again.
    let evaluated = workers[1].replayed_validations();
    let config = &workers[1].engine.setup.config;
    let of_rank = config.validation_assignment().count(0);
    let least = if never_captured_evaluation(config).is_none() && of_rank == 6 { 9 } else { 0 };
    assert!(evaluated >= least, "{evaluated} replayed micro-batches of {sets:?}");
    replayed
}
