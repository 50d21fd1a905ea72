//! Times of a step's phases, in real runs on the CPU.
#![allow(clippy::unwrap_used, clippy::panic, reason = "in tests, a panic is the report of a failure")]

mod common;

use std::sync::{Arc, Mutex};

use autograd::{Tape, Var};
use common::runs::{GPT, MLP, config, train_in};
use nn::{Input, Model, NnError, Parameters};
use run::RunOptions;
use telemetry::{Phase, RankStatistics, Statistic, Unit};
use tensor::Tensor;
use worker::{DeviceChoice, ModelHook};

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
            let of = |whole: fn(Phase) -> Statistic| Phase::ALL.map(|phase| rank.get(whole(phase)));
            let (whole, step) = (of(Statistic::WholeTime), rank.get(Statistic::WholeStepTime));
            assert!(step.abs_diff(whole.iter().sum()) <= 5, "{whole:?}, {step}");
            // The phases are within the steps of the loop, each of which is rounded to a microsecond; their
            // share of a step depends on the machine's other load.
            let microseconds = 1e6 * seconds;
            let own_clock = rank.rank == 0;
            assert!(!own_clock || step as f64 <= microseconds + 100.0, "{step} of {microseconds} µs");
            let (median, median_step) = (of(Statistic::MedianTime), rank.get(Statistic::MedianStepTime));
            let within = median_step <= step && median.iter().all(|phase| *phase <= step);
            assert!(within, "{median:?}, {median_step}");
            for phase in [Phase::Forward, Phase::Backward, Phase::Update] {
                assert!(median[phase.index()] > 0, "{phase:?}: {median:?}");
            }
        }
        let (said, lines) = (report.to_string(), ["time by phase, median of 7 steps", "reduce, exposed"]);
        assert!(lines.iter().all(|line| said.contains(line)), "{said}");
    }
}

/// Every statistic that does not count time.
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
    let (meta, cpu) = (run("meta", DeviceChoice::Meta), run("cpu", DeviceChoice::Cpu));
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

/// One forward pass: rank, step, whether it trains, weights in flight before and after it, and number of
/// weights.
type Pass = (usize, u32, bool, [usize; 3]);

/// A model whose weights are observed.
struct Look {
    inner: Box<dyn Model>,
    seen: Arc<Mutex<Vec<Pass>>>,
}

impl Look {
    fn arriving(&self) -> usize {
        self.parameters().list().iter().filter(|parameter| parameter.tensor.is_arriving()).count()
    }
}

impl Model for Look {
    fn parameters(&self) -> &Parameters {
        self.inner.parameters()
    }

    fn forward(&self, tape: &Tape, input: Input) -> Result<Var, NnError> {
        let before = self.arriving();
        let output = self.inner.forward(tape, input)?;
        let device = tape.device();
        if !device.is_meta() {
            let counts = [before, self.arriving(), self.parameters().list().len()];
            let pass = (device.rank(), device.step(), tape.mode().is_training(), counts);
            self.seen.lock().unwrap().push(pass);
        }
        Ok(output)
    }

    fn loss(&self, tape: &Tape, prediction: Var, targets: &Tensor, scale: f32) -> Result<Var, NnError> {
        self.inner.loss(tape, prediction, targets, scale)
    }
}

/// Weights of a sharded optimizer are in flight after a step was enqueued; the next pass, a step's or a
/// validation's, waits for them when it reads them.
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
        let hook = ModelHook::new(move |inner| Box::new(Look { inner, seen: Arc::clone(&of_hook) }));
        let directory = tempfile::tempdir().unwrap();
        let options = RunOptions {
            device: DeviceChoice::Cpu,
            model_hook: Some(hook),
            run_dir: Some(directory.path().join("run")),
            quiet: true,
            ..RunOptions::default()
        };
        let report = run::train(config(text, overrides), options).unwrap();
        let seen = seen.lock().unwrap();
        for rank in 0..report.ranks.len() {
            // No update came before the first pass.
            let mut last = (1, true);
            let mut updates = 0;
            for (_, step, training, [before, after, all]) in seen.iter().filter(|pass| pass.0 == rank) {
                // The first pass after an update: the next step's, or a validation's.
                let first = last.1 && (last.0 < *step || !training);
                let expected = if first && *travels { *all } else { 0 };
                assert_eq!((*before, *after), (expected, 0), "{overrides:?}: {rank}, {step}, {training}");
                updates += usize::from(first);
                last = (*step, *training);
            }
            // A step is followed by a step or a validation; after a validation the weights have arrived.
            assert_eq!(updates, report.summary.losses.len(), "{overrides:?}");
        }
    }
}
