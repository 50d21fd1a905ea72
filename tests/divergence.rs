//! Tests of comparing a run with its plan, event by event: code that allocates or keeps memory beyond the
//! plan is reported with the allocation, the rank and the step.

use std::cell::RefCell;
use std::path::Path;

use crate::common::devices::gpu;
use crate::common::runs::{GPT, MLP, config};
use autograd::{Mode, Tape, Var};
use memory::Category;
use nn::{Input, Model, NnError, Parameters};
use plan::{plan, prepare};
use run::{Interrupt, RunOptions, TrainReport};
use telemetry::Statistic;
use telemetry::step_trace::{DifferenceKind, Owner, RankTraces, RunPart};
use tensor::Tensor;
use worker::{DeviceChoice, ModelHook, Placement};

/// A fault caused by a probe.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// No fault.
    None,
    /// Keeps every prediction.
    KeepsActivations,
    /// Computes the loss again and keeps it with its graph, as for plotting.
    KeepsLosses,
    /// Computes the loss again.
    Computes,
    /// Keeps predictions of validations.
    KeepsValidations,
}

/// Rank and steps in which the fault occurs.
#[derive(Clone, Copy, Debug)]
struct When {
    rank: usize,
    from_step: u32,
    /// Whether it also occurs during planning.
    planned: bool,
}

/// A model with a probe, and the values that the probe keeps.
struct Probe {
    inner: Box<dyn Model>,
    fault: Fault,
    when: When,
    batch: RefCell<Option<Tensor>>,
    tensors: RefCell<Vec<Tensor>>,
    losses: RefCell<Vec<(Tape, Var)>>,
}

impl Probe {
    fn hook(fault: Fault, when: When) -> ModelHook {
        ModelHook::new(move |inner| {
            let (batch, tensors, losses) = Default::default();
            Box::new(Probe { inner, fault, when, batch, tensors, losses })
        })
    }

    /// Returns whether the probe causes `fault` in a pass of `mode`.
    fn acts(&self, tape: &Tape, fault: Fault, mode: Mode) -> bool {
        let device = tape.device();
        let When { rank, from_step, planned } = self.when;
        let now = device.rank() == rank && device.step() >= from_step && (planned || !device.is_meta());
        now && self.fault == fault && tape.mode() == mode
    }
}

impl Model for Probe {
    fn parameters(&self) -> &Parameters {
        self.inner.parameters()
    }

    fn forward(&self, tape: &Tape, input: Input) -> Result<Var, NnError> {
        if let (Input::Batch(batch), Fault::KeepsLosses | Fault::Computes) = (&input, self.fault) {
            *self.batch.borrow_mut() = Some(batch.clone());
        }
        let prediction = self.inner.forward(tape, input)?;
        if self.acts(tape, Fault::KeepsActivations, Mode::Train)
            || self.acts(tape, Fault::KeepsValidations, Mode::Evaluate)
        {
            self.tensors.borrow_mut().push(prediction.tensor().clone());
        }
        Ok(prediction)
    }

    fn loss(&self, tape: &Tape, prediction: Var, targets: &Tensor, scale: f32) -> Result<Var, NnError> {
        let loss = self.inner.loss(tape, prediction, targets, scale)?;
        // The batch is released at the end of the step in any case.
        let Some(batch) = self.batch.take() else { return Ok(loss) };
        let keeps = self.acts(tape, Fault::KeepsLosses, Mode::Train);
        if keeps || self.acts(tape, Fault::Computes, Mode::Train) {
            let another = Tape::new(tape.device(), Mode::Train);
            let prediction = self.inner.forward(&another, Input::Batch(batch))?;
            let loss = self.inner.loss(&another, prediction, targets, scale)?;
            if keeps {
                self.losses.borrow_mut().push((another, loss));
            }
        }
        Ok(loss)
    }
}

fn run(directory: &Path, text: &str, overrides: &[&str], options: RunOptions) -> TrainReport {
    let options = RunOptions { run_dir: Some(directory.to_owned()), quiet: true, ..options };
    run::train(config(text, overrides), options).unwrap()
}

fn traces(directory: &Path, rank: usize) -> RankTraces {
    RankTraces::read(&directory.join(format!("traces/rank-{rank}.json.gz"))).unwrap()
}

/// Asserts that no event differs from the plan and that the trace belongs to the run.
fn is_as_planned(directory: &Path, report: &TrainReport, what: &str) {
    assert!(report.divergences.is_empty() && report.outlived.is_empty(), "{what}: {report}");
    assert_eq!(report.summary.more["divergences"], serde_json::json!([]));
    for ran in &report.ranks {
        let traces = traces(directory, ran.rank);
        assert!(traces.diverged.is_none());
        let measured = traces.steady.measured.as_ref().unwrap();
        assert!(measured.step <= 3, "the first of those that repeat");
        assert!(
            traces.steady.planned() == Some(measured),
            "{what}: {:?}",
            traces.steady.planned().and_then(|p| measured.difference(p))
        );
        let end = *measured.curve().points.last().unwrap();
        assert_eq!(end.reserved, ran.get(Statistic::ReservedBytes), "{what}");
        for category in Category::ALL {
            assert_eq!(
                end.bytes.get(category),
                ran.get(Statistic::LiveBytes(category)),
                "{category:?}: {what}"
            );
        }
        assert!(measured.outlived().holdings.is_empty(), "nothing that a steady step asks for outlives it");
        let phases: Vec<_> = measured.spans().into_iter().map(|span| span.phase).collect();
        for phase in ["forward", "backward"] {
            assert!(phases.iter().any(|other| other == phase), "{phases:?}: {what}");
        }
    }
}

const SHARDED: &str = "parallel.zero_stage=1";

#[test]
fn traces_equal_plans() {
    let table: &[(&str, &[&str], DeviceChoice)] = &[
        (GPT, &["parallel.data=1"], DeviceChoice::Cpu),
        (GPT, &["parallel.data=2", SHARDED, "checkpoint.every=1"], DeviceChoice::Cpu),
        (GPT, &["parallel.data=4", "train.validation_micro_batches=2"], DeviceChoice::Cpu),
        (GPT, &["parallel.data=2", "memory.history=50"], DeviceChoice::Meta),
        (GPT, &["parallel.data=2", "parallel.pipeline=2", SHARDED], DeviceChoice::Cpu),
        (GPT, &["parallel.data=3", "parallel.zero_stage=2"], DeviceChoice::Cpu),
        (GPT, &["parallel.data=4", "parallel.zero_stage=3", "parallel.shard=2"], DeviceChoice::Cpu),
        (GPT, &["parallel.data=3", "parallel.zero_stage=3"], DeviceChoice::Meta),
        (GPT, &["parallel.pipeline=2", "parallel.schedule=interleaved", "model.layers=4"], DeviceChoice::Cpu),
        (GPT, &["parallel.pipeline=2", "parallel.schedule=zero-bubble"], DeviceChoice::Cpu),
        (GPT, &["parallel.data=2", "memory.recompute=block"], DeviceChoice::Cpu),
        (MLP, &["memory.recompute=2"], DeviceChoice::Cpu),
        (MLP, &["parallel.data=2", "optim.kind=adamw"], DeviceChoice::Cpu),
        (
            MLP,
            &["memory.allocator='max_split_size_mb:20,garbage_collection_threshold:0.5'"],
            DeviceChoice::Cpu,
        ),
        (MLP, &["train.steps=1"], DeviceChoice::Cpu),
    ];
    for (text, overrides, device) in table {
        let directory = tempfile::tempdir().unwrap();
        let options = RunOptions { device: *device, ..RunOptions::default() };
        let report = run(directory.path(), text, overrides, options);
        is_as_planned(directory.path(), &report, &overrides.join(" "));
    }
}

#[test]
fn gpu_traces_equal_plans() {
    if !gpu() {
        return;
    }
    let table: &[(&str, &[&str])] = &[
        (GPT, &[]),
        (GPT, &["model.width=256", "model.heads=4", "precision.compute=bf16", "checkpoint.every=2"]),
        (MLP, &["memory.allocator=backend:native"]),
    ];
    for (text, overrides) in table {
        let directory = tempfile::tempdir().unwrap();
        let options = RunOptions { device: DeviceChoice::Cuda, ..RunOptions::default() };
        let report = run(directory.path(), text, overrides, options);
        is_as_planned(directory.path(), &report, &overrides.join(" "));
        // An injected fault is found there too.
        let directory = tempfile::tempdir().unwrap();
        let when = When { rank: 0, from_step: 3, planned: false };
        let model_hook = Some(Probe::hook(Fault::KeepsActivations, when));
        let options = RunOptions { device: DeviceChoice::Cuda, model_hook, ..RunOptions::default() };
        let report = run(directory.path(), text, overrides, options);
        assert_eq!(report.divergences.len(), 1);
        assert_eq!((report.divergences[0].step, report.outlived[0].step), (3, 3), "{report}");
    }
}

#[test]
fn the_planned_peak_names_its_phase_and_module() {
    for (text, overrides) in [(GPT, &["parallel.data=2"][..]), (MLP, &[]), (GPT, &["train.steps=1"])] {
        let setup = prepare(config(text, overrides), Placement::Cpu).unwrap();
        let plan = plan(&setup, 0).unwrap();
        let peak = plan.parts.peak().unwrap();
        assert_eq!(peak.peak.bytes, plan.statistics.peak_allocated(), "{overrides:?}");
        for category in Category::ALL {
            let at_peak = plan.counters.get(Statistic::PeakBytes(category));
            assert_eq!(peak.live.by_category().get(category), at_peak, "{category:?} of {overrides:?}");
        }
        assert_eq!(peak.part, RunPart::Step);
        assert!(["forward", "backward"].contains(&peak.peak.phase.as_str()), "{:?}", peak.peak);
        assert!(peak.peak.owner.is_some_and(|owner| !owner.operator.is_empty()));
        assert!(plan.parts.outlived().is_none() && !plan.parts.grows());
    }
}

/// Module, operator and category of an owner.
fn name(owner: &Owner) -> (&str, &str, Category) {
    (&owner.module, &owner.operator, owner.category)
}

#[test]
fn owners_of_unplanned_memory_are_named() {
    use Fault::{Computes, KeepsActivations, KeepsLosses, KeepsValidations};
    // Expected: part, number of differences, kind, owner and bytes of the first one, and kept blocks.
    // The prediction of a language model is the input of its head.
    let hidden = 2 * 32 * 32 * 4;
    let prediction = ("ln_f", "layer_norm.forward_residual", Category::Activation);
    let validating = ("validation.ln_f", "layer_norm.forward_residual", Category::Activation);
    let embedding = ("embedding", "embedding.forward", Category::Activation);
    // A graph keeps the batch first.
    let all = Some((("", "from_host", Category::Input), None));
    let leak = Some((prediction, Some(2)));
    let cases = [
        (
            KeepsActivations,
            (1, 3),
            (RunPart::Step, 3, 6),
            DifferenceKind::Unfreed,
            (prediction, hidden),
            leak,
        ),
        (
            KeepsActivations,
            (0, 1),
            (RunPart::Step, 1, 8),
            DifferenceKind::Unfreed,
            (prediction, hidden),
            leak,
        ),
        (KeepsLosses, (0, 2), (RunPart::Step, 2, 7), DifferenceKind::Extra, (embedding, hidden), all),
        (Computes, (1, 6), (RunPart::Step, 6, 2), DifferenceKind::Extra, (embedding, hidden), None),
        (
            KeepsValidations,
            (0, 1),
            (RunPart::Validation, 4, 4),
            DifferenceKind::Unfreed,
            (validating, hidden),
            Some((validating, Some(2))),
        ),
    ];
    for (fault, (rank, from_step), (part, step, parts), kind, (owner, bytes), holding) in cases {
        let directory = tempfile::tempdir().unwrap();
        let when = When { rank, from_step, planned: false };
        let options = RunOptions {
            device: DeviceChoice::Cpu,
            model_hook: Some(Probe::hook(fault, when)),
            ..RunOptions::default()
        };
        let report = run(directory.path(), GPT, &["parallel.data=2"], options);
        let [divergence] = report.divergences.as_slice() else {
            panic!("{fault:?}: {:?}", report.divergences)
        };
        assert_eq!(
            (divergence.rank, divergence.part, divergence.step, divergence.parts),
            (rank, part, step, parts),
            "{divergence}"
        );
        let first = divergence.first.as_ref().unwrap();
        assert_eq!((first.kind, name(&first.owner), first.bytes), (kind, owner, bytes), "{divergence}");
        let oldest = divergence.kept.holdings.first();
        assert_eq!(oldest.map(|h| name(&h.owner)), holding.map(|(owner, _)| owner), "{divergence}");
        if let Some((_, Some(blocks))) = holding {
            let [only] = divergence.kept.holdings.as_slice() else { panic!("{divergence}") };
            assert_eq!(only.blocks, blocks);
            assert_eq!(divergence.measured.allocated_bytes - divergence.planned.allocated_bytes, only.bytes);
        }
        // A step that leaks its graph is reported even without a plan.
        let outlives: Vec<_> =
            report.outlived.iter().map(|outlived| (outlived.rank, outlived.part, outlived.step)).collect();
        let expected = if holding.is_some() { vec![(rank, part, step)] } else { vec![] };
        assert_eq!(outlives, expected, "{fault:?}");
        // The files and the printed text contain all of it.
        let words = report.to_string();
        if let Some((owner, Some(_))) = holding {
            let still = format!("activations of `{}` (", owner.0);
            assert!(words.contains(&still) && words.contains("were still alive"), "{words}");
        }
        assert!(
            words.contains(&format!("rank {rank} leaves its plan in")) && words.contains(owner.1),
            "{words}"
        );
        let summary = std::fs::read_to_string(directory.path().join("summary.json")).unwrap();
        let summary: serde_json::Value = serde_json::from_str(&summary).unwrap();
        assert_eq!(summary["divergences"], serde_json::to_value(&report.divergences).unwrap());
        assert_eq!(summary["divergences"][0]["first"]["operator"], owner.1);
        assert_eq!(summary["outlived"].as_array().unwrap().len(), expected.len());
        let pair = traces(directory.path(), rank).diverged.unwrap();
        assert_eq!(pair.measured.as_ref().unwrap().difference(pair.planned().unwrap()).as_ref(), Some(first));
        assert!(traces(directory.path(), 1 - rank).diverged.is_none());
    }
}

/// Checks that an out-of-memory error after a leak reports when the leak began and its first allocation.
#[test]
fn an_out_of_memory_error_names_the_divergence_before_it() {
    let needs = {
        let setup = prepare(config(GPT, &[]), Placement::Cpu).unwrap();
        plan(&setup, 0).unwrap().statistics.peak_reserved()
    };
    let directory = tempfile::tempdir().unwrap();
    let when = When { rank: 0, from_step: 5, planned: false };
    let (model_hook, run_dir) =
        (Some(Probe::hook(Fault::KeepsLosses, when)), Some(directory.path().to_owned()));
    let options =
        RunOptions { device: DeviceChoice::Cpu, model_hook, run_dir, quiet: true, ..RunOptions::default() };
    // Memory for some leaking steps.
    let limit = format!("memory.limit_bytes={}", needs + (6 << 20));
    let error = run::train(config(GPT, &[&limit, "train.steps=5000"]), options).unwrap_err().to_string();
    // The message explains the leak: what was kept, since when, and how much more in each step.
    let words = [
        "out of memory",
        "before that, rank 0 leaves its plan in step 5",
        "embedding.forward",
        "outside the step it holds ",
        "before that, rank 0: activations of `",
        " from step 5 were still alive at step ",
        " a step)",
    ];
    assert!(words.iter().all(|word| error.contains(word)), "{error}");
    // The run directory has the divergences too.
    let traces = traces(directory.path(), 0);
    assert_eq!(traces.steady.planned(), traces.steady.measured.as_ref());
    assert_eq!(traces.diverged.unwrap().measured.unwrap().step, 5);
}

#[test]
fn a_probe_without_a_fault_changes_nothing() {
    let when = When { rank: 0, from_step: 1, planned: true };
    let directory = tempfile::tempdir().unwrap();
    let [with, without] = [Some(Probe::hook(Fault::None, when)), None].map(|model_hook| {
        let path = directory.path().join(if model_hook.is_some() { "with" } else { "without" });
        let report = run(
            &path,
            MLP,
            &[],
            RunOptions { device: DeviceChoice::Cpu, model_hook, ..RunOptions::default() },
        );
        is_as_planned(&path, &report, "a probe");
        report.summary.weights_sha256
    });
    assert_eq!(with, without);
}

#[test]
fn planning_finds_a_leak_in_the_code() {
    let when = When { rank: 0, from_step: 1, planned: true };
    let hook = || Probe::hook(Fault::KeepsActivations, when);
    let setup = prepare(config(MLP, &["train.steps=1000000"]), Placement::Cpu).unwrap();
    let planned = plan(&setup.with_hook(Some(hook())).unwrap(), 0).unwrap().parts;
    assert!(planned.grows());
    let outlived = planned.outlived().unwrap();
    assert_eq!((outlived.step, outlived.kept.holdings.len()), (1, 1));
    assert_eq!(outlived.kept.holdings[0].owner.operator, "linear.forward");
    // The run equals the plan as far as it gets, and reports the same leak.
    let directory = tempfile::tempdir().unwrap();
    let options = RunOptions { device: DeviceChoice::Cpu, model_hook: Some(hook()), ..RunOptions::default() };
    let report = run(directory.path(), MLP, &["train.steps=9"], options);
    assert!(report.divergences.is_empty());
    let outlives: Vec<_> = report.outlived.iter().map(|leak| (leak.step, leak.parts)).collect();
    // Nine steps and a validation.
    assert_eq!(outlives, [(1, 10)]);
}

#[test]
fn a_resumed_run_is_compared_with_the_plan_of_its_remainder() {
    let directory = tempfile::tempdir().unwrap();
    let go_on = |grid: &str, interrupt: Interrupt, model_hook: Option<ModelHook>| {
        let options = RunOptions {
            device: DeviceChoice::Cpu,
            resume: true,
            interrupt,
            model_hook,
            ..RunOptions::default()
        };
        run(directory.path(), GPT, &[grid, "checkpoint.every=1000"], options)
    };
    for grid in ["parallel.data=2", "parallel.data=1"] {
        let report = go_on(grid, Interrupt::after(1), None);
        assert!(report.interrupted && report.divergences.is_empty() && report.outlived.is_empty());
    }
    let when = When { rank: 1, from_step: 4, planned: false };
    let hook = Probe::hook(Fault::KeepsActivations, when);
    let report = go_on("parallel.data=2", Interrupt::default(), Some(hook));
    let divergences: Vec<_> = report.divergences.iter().map(|one| (one.rank, one.step)).collect();
    assert_eq!(divergences, [(1, 4)]);
    let report = go_on("parallel.data=4", Interrupt::default(), None);
    assert_eq!(report.summary.steps, config(GPT, &[]).train.steps, "nothing is left to do");
}
