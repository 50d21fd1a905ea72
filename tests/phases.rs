//! Tests of times and memory of a step's phases, in real runs on the CPU.

use std::path::Path;
use std::sync::{Arc, Mutex};

use crate::common::runs::{GPT, MLP, config, on_cpu, train_in};
use crate::common::wrapped::with_forward;
use device::{Category, DType, Request};
use nn::Model;
use run::{RunOptions, TrainReport};
use serde_json::Value;
use telemetry::{Phase, RankStatistics, RankStep, Statistic, Unit, VALIDATION};
use tensor::Tensor;
use worker::{DeviceChoice, StepHook};

#[test]
fn phases_add_up_to_the_step() {
    for ranks in [1, 2] {
        let directory = tempfile::tempdir().unwrap();
        let overrides = ["train.steps=8", "train.validate_every=0", &format!("parallel.data={ranks}")];
        let report =
            train_in(&directory.path().join("run"), config(GPT, &overrides), DeviceChoice::Cpu).unwrap();
        assert_eq!(report.ranks.len(), ranks);
        let tokens = 7.0 * (2 * 4 * 32) as f64;
        let seconds = tokens / report.summary.tokens_per_second;
        for rank in &report.ranks {
            assert_eq!(rank.get(Statistic::TimedSteps), 7, "the first warms up");
            let phase_values = |whole: fn(Phase) -> Statistic| Phase::ALL.map(|phase| rank.get(whole(phase)));
            let whole = phase_values(Statistic::WholeTime);
            let step = rank.get(Statistic::WholeStepTime);
            assert!(step.abs_diff(whole.iter().sum()) <= 5, "{whole:?}, {step}");
            // The phases are within the steps of the loop, each rounded to a microsecond. Their fraction of a
            // step depends on the machine's other load.
            let microseconds = 1e6 * seconds;
            let own_clock = rank.rank == 0;
            assert!(!own_clock || step as f64 <= microseconds + 100.0, "{step} of {microseconds} µs");
            let median = phase_values(Statistic::MedianTime);
            let median_step = rank.get(Statistic::MedianStepTime);
            let within = median_step <= step && median.iter().all(|phase| *phase <= step);
            assert!(within, "{median:?}, {median_step}");
            for phase in [Phase::Forward, Phase::Backward, Phase::Update] {
                assert!(median[phase.index()] > 0, "{phase:?}: {median:?}");
            }
        }
        let message = report.to_string();
        let lines = ["time by phase, median of 7 steps", "reduce, exposed"];
        assert!(lines.iter().all(|line| message.contains(line)), "{message}");
    }
}

/// Returns the lines of a run's `metrics.jsonl`.
fn metrics(run_dir: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(run_dir.join("metrics.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Checks a step of the five-layer model with one micro-batch: two batch tensors, five activations and the
/// loss, all freed within the step.
#[test]
fn every_step_records_the_memory_of_its_phases() {
    let directory = tempfile::tempdir().unwrap();
    let one = ["train.global_batch_size=10", "parallel.lanes=1", "optim.momentum=0", "telemetry.every=2"];
    let run_dir = directory.path().join("run");
    train_in(&run_dir, config(MLP, &one), DeviceChoice::Cpu).unwrap();
    let lines = metrics(&run_dir);
    for line in &lines {
        assert_eq!(line["allocated_bytes"], 3_027_968);
        assert_eq!(line["step_peak_allocated_bytes"], 3_098_624);
    }
    let with_ranks: Vec<_> = lines.iter().filter(|line| line.get("ranks").is_some()).collect();
    let steps: Vec<_> = with_ranks.iter().map(|line| line["step"].as_u64().unwrap()).collect();
    assert_eq!(steps, [1, 2, 4, 5], "the first, every second, the last");
    for line in with_ranks {
        let [record] = line["ranks"].as_array().unwrap().as_slice() else { panic!("{line}") };
        let record: RankStep = serde_json::from_value(record.clone()).unwrap();
        let phase = |phase: Phase| &record.phases[phase.name()];
        assert_eq!(record.step, line["step"].as_u64().unwrap(), "the latest of equal steps");
        assert_eq!((record.allocated_bytes, record.step_peak_allocated_bytes), (3_027_968, 3_098_624));
        let (inputs, forward, backward) =
            (phase(Phase::Inputs), phase(Phase::Forward), phase(Phase::Backward));
        assert_eq!((inputs.before_bytes, inputs.after_bytes), (3_027_968, 3_027_968 + 4_608));
        assert_eq!(forward.after_bytes - forward.before_bytes, 57_344 + 512);
        assert_eq!(backward.peak_allocated_bytes, 3_098_624);
        assert_eq!(phase(Phase::Update).after_bytes, 3_027_968);
        let timed = record.phases.iter().filter(|(name, _)| *name != VALIDATION);
        assert!(timed.clone().all(|(_, figures)| figures.microseconds.is_some()), "{record:?}");
        assert_eq!(record.phases.contains_key(VALIDATION), line.get("validation_loss").is_some());
    }
}

/// Checks that a step that needs more memory than others appears in the next record of its rank only, and is
/// hidden neither by the run's peak nor by later steps.
#[test]
fn a_larger_step_is_not_hidden() {
    const LARGE: u64 = 1 << 20;
    let directory = tempfile::tempdir().unwrap();
    let run_dir = directory.path().join("run");
    let hook = with_forward(|model, tape, input| {
        let device = tape.device();
        let output = model.forward(tape, input)?;
        if device.step() == 5 && device.rank() == 1 && tape.mode().is_training() {
            let request = Request::new(Category::Other, "test");
            // More than the peak of other steps, which is in backward.
            drop(Tensor::empty(device, [LARGE as usize / 4], DType::F32, request)?);
        }
        Ok(output)
    });
    let options = RunOptions { model_hook: Some(hook), no_plan: true, ..on_cpu(&run_dir) };
    let sets = ["parallel.data=2", "train.steps=12", "telemetry.every=4", "train.validate_every=6"];
    run::train(config(MLP, &sets), options).unwrap();
    let lines = metrics(&run_dir);
    let records = |line: &Value| -> Vec<RankStep> { serde_json::from_value(line["ranks"].clone()).unwrap() };
    let usual = lines[3]["step_peak_allocated_bytes"].as_u64().unwrap();
    let own: Vec<_> = lines.iter().map(|line| line["step_peak_allocated_bytes"].as_u64().unwrap()).collect();
    assert!(own.iter().all(|peak| *peak == usual), "rank 0 has no larger step: {own:?}");
    let mut run_peak = usual;
    for (line, steps) in [(0, [1, 1]), (3, [4, 4]), (7, [8, 5]), (11, [12, 12])] {
        let records = records(&lines[line]);
        assert_eq!(records.iter().map(|record| record.step).collect::<Vec<_>>(), steps);
        for record in &records {
            let phases = &record.phases;
            // When the large tensor is allocated, the model's output exists, but not the loss.
            let large = phases["forward"].after_bytes - 512 + LARGE;
            let peak = if record.step == 5 { large } else { usual };
            assert_eq!(record.step_peak_allocated_bytes, peak, "{record:?}");
            run_peak = run_peak.max(peak);
            let own_peak = if record.rank == 1 { run_peak } else { usual };
            assert_eq!(record.peak_allocated_bytes, own_peak);
            assert_eq!(phases.contains_key(VALIDATION), [7, 11].contains(&line), "{record:?}");
            // Phases are consistent: a rank's bytes after one phase equal those before the next.
            assert_eq!(phases["optimizer"].after_bytes, record.allocated_bytes);
        }
    }
}

/// A moment recorded by a hook: name of the module or gradient, step, pass, and bytes allocated.
type Recorded = (String, u64, Option<(usize, usize)>, u64);

/// Trains the five-layer model on one rank. If `listens`, a hook records every moment.
fn recorded(run_dir: &Path, sets: &[&str], listens: bool) -> (TrainReport, Vec<Recorded>) {
    let recorded: Arc<Mutex<Vec<Recorded>>> = Arc::default();
    let of_hook = Arc::clone(&recorded);
    let hook = StepHook::new(move |at| {
        if at.rank == 0 {
            let note = (format!("{:?}", at.moment), at.step, at.pass, at.counters.allocated());
            of_hook.lock().unwrap().push(note);
        }
    });
    let options = RunOptions { step_hook: listens.then_some(hook), ..on_cpu(run_dir) };
    let report = run::train(config(MLP, sets), options).unwrap();
    let recorded = std::mem::take(&mut *recorded.lock().unwrap());
    (report, recorded)
}

#[test]
fn a_hook_sees_every_moment_and_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let one = ["train.global_batch_size=10", "parallel.lanes=1", "optim.momentum=0", "train.steps=3"];
    let two = ["parallel.data=2", "parallel.zero_stage=1", "train.steps=3"];
    for (number, sets) in [&one[..], &two[..]].into_iter().enumerate() {
        let run = |listens: bool| {
            let name = format!("{number}-{listens}");
            recorded(&directory.path().join(name), sets, listens)
        };
        let ((with, moments), (without, none)) = (run(true), run(false));
        assert!(none.is_empty() && !moments.is_empty());
        assert_eq!(with.summary.weights_sha256, without.summary.weights_sha256);
        assert_eq!(counts(&with.ranks), counts(&without.ranks));
        assert!(with.divergences.is_empty() && with.outlived.is_empty(), "{with}");
        assert_eq!(with.unplanned.as_deref(), Some(&[][..]));
        let steps: Vec<u64> = moments.iter().map(|recorded| recorded.1).collect();
        assert!(steps.is_sorted() && steps.first() == Some(&1) && steps.last() == Some(&3));
    }
    let (_, moments) = recorded(&directory.path().join("order"), &one, true);
    let last: Vec<_> = moments.iter().filter(|recorded| recorded.1 == 3).collect();
    let at = |moment: &str| {
        let position = last.iter().position(|recorded| recorded.0 == moment);
        position.unwrap_or_else(|| panic!("{moment} is not among {last:?}"))
    };
    let outer = [
        "BeforeForward",
        "BeforeModule(\"0\")",
        "AfterModule(\"0\")",
        "BeforeModule(\"4\")",
        "AfterForward",
        "BeforeBackward",
        "Gradient(\"4.weight\")",
        "Gradient(\"0.weight\")",
        "AfterBackward",
        "BeforeUpdate",
        "AfterUpdate",
    ];
    let positions = outer.map(at);
    assert!(positions.is_sorted(), "{positions:?} of {last:?}");
    let bytes = |moment: &str| last[at(moment)].3;
    assert_eq!(bytes("AfterForward") - bytes("BeforeForward"), 57_344 + 512);
    let loss = last.iter().position(|recorded| recorded.0 == "BeforeModule(\"loss\")").unwrap();
    assert_eq!(last[loss].3 - bytes("BeforeForward"), 57_344);
    assert_eq!((bytes("BeforeUpdate"), bytes("AfterUpdate")), (3_027_968, 3_027_968));
    assert_eq!((last[positions[0]].2, last[positions[9]].2), (Some((0, 0)), None));
    let gradients = last.iter().filter(|recorded| recorded.0.starts_with("Gradient"));
    assert_eq!(gradients.count(), 10, "a weight and a bias of each layer");
}

/// Returns every statistic that is not a time.
fn counts(ranks: &[RankStatistics]) -> Vec<Vec<u64>> {
    let timeless = |rank: &RankStatistics| {
        rank.iter().filter(|(statistic, _)| statistic.unit() != Unit::Microseconds).map(|(_, v)| v).collect()
    };
    ranks.iter().map(timeless).collect()
}

#[test]
fn a_dry_run_times_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let run = |name: &str, device| train_in(&directory.path().join(name), config(GPT, &[]), device).unwrap();
    let meta = run("meta", DeviceChoice::Meta);
    let cpu = run("cpu", DeviceChoice::Cpu);
    assert_eq!(meta.ranks[0].get(Statistic::TimedSteps), 0);
    assert!(!meta.to_string().contains("time by phase"));
    let timed = Statistic::all().iter().position(|statistic| *statistic == Statistic::TimedSteps).unwrap();
    let without = |ranks: &[RankStatistics]| {
        let mut counts = counts(ranks);
        for counts in &mut counts {
            counts.remove(timed);
        }
        counts
    };
    assert_eq!(without(&meta.ranks), without(&cpu.ranks), "timing takes no memory");
}

/// One forward pass: rank, step, whether it trains, and numbers of weights (in flight before, in flight
/// after, in total).
type Pass = (usize, u32, bool, [usize; 3]);

/// Returns the number of a model's weights that are in flight.
fn arriving(model: &dyn Model) -> usize {
    let weights = model.parameters().list().iter();
    weights.filter(|parameter| parameter.weight.tensor().unwrap().is_arriving()).count()
}

/// Checks that weights of a sharded optimizer are still being gathered after a step has been enqueued, and
/// that the next pass, of a step or a validation, waits when it reads them.
#[test]
fn new_weights_arrive_during_the_next_pass() {
    let sharded = "parallel.zero_stage=1";
    let table: &[(&str, &[&str], bool)] = &[
        (GPT, &["parallel.data=2", sharded], true),
        (GPT, &["parallel.data=2", "parallel.pipeline=2", sharded], true),
        (MLP, &["parallel.data=4", sharded, "parallel.reduction=nccl"], true),
        (GPT, &["parallel.data=2"], false),
        (GPT, &[sharded, "parallel.data=1"], false),
    ];
    for (text, overrides, travels) in table {
        let seen: Arc<Mutex<Vec<Pass>>> = Arc::default();
        let of_hook = Arc::clone(&seen);
        let hook = with_forward(move |model, tape, input| {
            let before = arriving(model);
            let output = model.forward(tape, input)?;
            let device = tape.device();
            if !device.is_meta() {
                let counts = [before, arriving(model), model.parameters().list().len()];
                let pass = (device.rank(), device.step(), tape.mode().is_training(), counts);
                of_hook.lock().unwrap().push(pass);
            }
            Ok(output)
        });
        let directory = tempfile::tempdir().unwrap();
        let options = RunOptions { model_hook: Some(hook), ..on_cpu(&directory.path().join("run")) };
        let report = run::train(config(text, overrides), options).unwrap();
        let seen = seen.lock().unwrap();
        for rank in 0..report.ranks.len() {
            // There was no update before the first pass.
            let mut last = (1, true);
            let mut updates = 0;
            for (_, step, training, [before, after, all]) in seen.iter().filter(|pass| pass.0 == rank) {
                // The first pass after an update, of the next step or of a validation.
                let first = last.1 && (last.0 < *step || !training);
                let expected = if first && *travels { *all } else { 0 };
                // The loss reads the head, whose weight is the embedding's on a single stage.
                let has_own_head = overrides.contains(&"parallel.pipeline=2") && rank % 2 == 1;
                let later = usize::from(expected > 0 && has_own_head);
                assert_eq!((*before, *after), (expected, later), "{overrides:?}: {rank}, {step}, {training}");
                updates += usize::from(first);
                last = (*step, *training);
            }
            // A step is followed by a step or a validation; after a validation the weights have arrived.
            assert_eq!(updates, report.summary.losses.len(), "{overrides:?}");
        }
    }
}
