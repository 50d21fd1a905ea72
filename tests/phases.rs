//! What the phases of a step take, in real runs on the CPU.
#![allow(clippy::unwrap_used, clippy::panic, reason = "in tests, a panic is the report of a failure")]

mod common;

use common::runs::{GPT, config, train_in};
use telemetry::{Phase, RankStatistics, Statistic, Unit};
use trainer::DeviceChoice;

#[test]
fn phases_add_up_to_the_step() {
    for ranks in [1, 2] {
        let directory = tempfile::tempdir().unwrap();
        // Steps that are long beside what lies between them.
        let overrides = [
            "model.width=128",
            "model.context=64",
            "train.steps=8",
            "train.validate_every=0",
            &format!("parallel.data={ranks}"),
        ];
        let report =
            train_in(&directory.path().join("run"), config(GPT, &overrides), DeviceChoice::Cpu).unwrap();
        assert_eq!(report.ranks.len(), ranks);
        let tokens = 7.0 * (2 * 4 * 64) as f64;
        let seconds = tokens / report.summary.tokens_per_second;
        for rank in &report.ranks {
            assert_eq!(rank.get(Statistic::TimedSteps), 7, "the first warms up");
            let of = |whole: fn(Phase) -> Statistic| Phase::ALL.map(|phase| rank.get(whole(phase)));
            let (whole, step) = (of(Statistic::WholeTime), rank.get(Statistic::WholeStepTime));
            assert!(step.abs_diff(whole.iter().sum()) <= 5, "{whole:?}, {step}");
            let part = step as f64 / 1e6 / seconds;
            // By two clocks: the phases', and that of the loop over steps.
            assert!((0.6..1.02).contains(&part), "{ranks} ranks: {step} µs of {seconds} s");
            let (median, step) = (of(Statistic::MedianTime), rank.get(Statistic::MedianStepTime));
            let sum: u64 = median.iter().sum();
            assert!(sum.abs_diff(step) as f64 <= 0.25 * step as f64, "{median:?}, {step}");
            for phase in [Phase::Forward, Phase::Backward, Phase::Update] {
                assert!(median[phase.index()] > 0, "{phase:?}: {median:?}");
            }
        }
        let (said, lines) = (report.to_string(), ["time by phase, median of 7 steps", "reduce, exposed"]);
        assert!(lines.iter().all(|line| said.contains(line)), "{said}");
    }
}

/// All that does not count time.
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
