//! Tests of `plimsoll bench scaling`, with real runs on the CPU.

use std::process::{Command, Output};
use std::time::Duration;

use crate::common;
use crate::common::runs::{GPT, config};
use bench::{BenchOptions, ScalingCase, bench_scaling};
use telemetry::scaling::{Scaling, ScalingRun, parse_runs};
use worker::DeviceChoice;

fn bench(arguments: &[&str]) -> Output {
    let mut command = Command::new(common::program());
    command.env("CUDA_VISIBLE_DEVICES", "").args(["bench", "scaling"]).args(arguments);
    for variable in common::jobs::FOREIGN {
        command.env_remove(variable);
    }
    command.output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Arguments for a small model and few steps.
const TINY: [&str; 12] = [
    "--device=cpu",
    "--model=small",
    "--micro-batch-size=2",
    "--steps=4",
    "--warm-up=1",
    "--set=model.layers=1",
    "--set=model.width=32",
    "--set=model.heads=2",
    "--set=model.context=32",
    "--set=model.vocabulary=64",
    "--set=train.seed=3",
    "--set=optim.warmup_steps=2",
];

#[test]
fn the_suite_measures_and_reports() {
    let directory = tempfile::tempdir().unwrap();
    let measured = bench(&[&TINY[..], &["--ranks=1,2", "--micro-batches=4", "--json"]].concat());
    assert!(measured.status.success(), "{}", text(&measured.stderr));
    let lines = text(&measured.stdout);
    let runs = parse_runs(&lines).unwrap();
    let shape = |run: &ScalingRun| (run.scaling, run.ranks, run.micro_batches, run.tokens);
    let strong = Scaling::Strong;
    let weak = Scaling::Weak;
    assert_eq!(
        runs.iter().map(shape).collect::<Vec<_>>(),
        [(strong, 1, 4, 256), (strong, 2, 4, 256), (weak, 1, 2, 128), (weak, 2, 4, 256)]
    );
    for run in &runs {
        assert_eq!((run.steps, run.warm_up, run.by_rank.len()), (4, 1, run.ranks));
        assert!(run.least_seconds <= run.step_seconds && run.step_seconds <= run.most_seconds);
        for rank in &run.by_rank {
            // By each rank's own clock, since one rank may wait in its step while another has not begun.
            let phases = rank.step_microseconds as f64 / 1e6;
            assert!(phases > 0.0 && phases <= rank.step_seconds + 2e-6, "{run:?}");
            assert!(rank.peak_reserved_bytes >= rank.peak_allocated_bytes && rank.peak_allocated_bytes > 0);
        }
    }
    assert_eq!(runs[0].loss.to_bits(), runs[1].loss.to_bits(), "equal batches have equal bits on every grid");
    assert!(runs[0].least_seconds > 20e-6, "a step takes time: {:?}", runs[0]);

    let file = directory.path().join("runs.jsonl");
    let plots = directory.path().join("plots");
    std::fs::write(&file, &lines).unwrap();
    let file = file.to_str().unwrap();
    let plots = plots.to_str().unwrap();
    let reported = bench(&["--report", file, "--plots", plots]);
    assert!(reported.status.success(), "{}", text(&reported.stderr));
    let table = text(&reported.stdout);
    assert!(table.starts_with("small, f32, micro-batch 2 on "), "{table}");
    assert!(table.contains("strong, tree: the last loss is the same to the bit on 1, 2 ranks"), "{table}");
    for plot in ["efficiency.svg", "memory.svg"] {
        let svg = std::fs::read_to_string(format!("{plots}/{plot}")).unwrap();
        assert!(svg.contains("<svg ") && svg.contains("strong, tree"), "{svg}");
    }
}

#[test]
fn wrong_arguments_are_refused_before_anything_runs() {
    let table: &[(&[&str], &str)] = &[
        (&["--ranks=0"], "invalid value '0' for '--ranks <N,…>'"),
        (&["--ranks=2,3"], "--ranks 2: 3 micro-batches cannot be divided among 2 ranks"),
        (&["--ranks=2", "--micro-batches=0"], "invalid value '0' for '--micro-batches <M>'"),
        (&["--ranks=one"], "invalid value 'one'"),
        (&["--set=parallel.data=2"], "--set parallel.data: the suite sets it: use --ranks"),
        (
            &["--set= train.global_batch_size = 2"],
            "--set train.global_batch_size: the suite sets it: use --ranks",
        ),
        (&["--set=parallel.datas=2"], "did you mean"),
        (&["--strong", "--weak"], "cannot be used with"),
        (&["--reduction=ring"], "possible values: tree, nccl"),
        (
            &["--model=gpt5"],
            "--model gpt5: unknown model; the models are small, gpt2-124m, gpt2-355m, gpt2-1558m, \
             llama3-1b, llama3-8b, gemma3-1b, qwen3-30b-a3b, qwen3.5-1b, gpt-shakespeare, resnet50",
        ),
        (&["--report=/nowhere/runs.jsonl"], "/nowhere/runs.jsonl: cannot read it"),
        (&["--report=Cargo.toml"], "Cargo.toml: line 1 is not a measured run"),
        (&["--report=x", "--json"], "cannot be used with"),
        (&["--report=x", "--alone"], "cannot be used with"),
        (&["--report=x", "--rounds=2"], "cannot be used with"),
        (&["--report=x", "--first-round=2"], "cannot be used with"),
        (&["--report=x", "--strong"], "cannot be used with"),
        (&["--report=x", "--weak"], "cannot be used with"),
        (&["--report=x", "--reduction=tree"], "cannot be used with"),
        (&["--report=x", "--micro-batches=2"], "cannot be used with"),
        (&["--report=x", "--shard"], "cannot be used with"),
        (&["--report=x", "--trace=y"], "cannot be used with"),
        (&["--rounds=0"], "invalid value '0' for '--rounds <N>'"),
        (&["--warm-up-seconds=-1"], "not a number of seconds from 0 to 3600"),
        (&["--warm-up-seconds=soon"], "not a number of seconds from 0 to 3600"),
        (&["--warm-up-seconds=1e9"], "not a number of seconds from 0 to 3600"),
        (&["--json", "--plots=x"], "cannot be used with"),
    ];
    for (arguments, sentence) in table {
        let output = bench(&[&["--steps=1"], *arguments].concat());
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {message}");
        assert!(message.contains(sentence), "{arguments:?}: {message}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
    let meta = bench(&["--device=meta"]);
    assert_eq!(meta.status.code(), Some(2));
    assert!(text(&meta.stderr).contains("no times can be measured"));
}

#[test]
fn devices_alone_are_measured_in_turn_with_the_runs() {
    let directory = tempfile::tempdir().unwrap();
    let measured = |asked: &[&str]| {
        let measured = bench(&[&TINY[..], &["--strong", "--json"], asked].concat());
        assert!(measured.status.success(), "{}", text(&measured.stderr));
        text(&measured.stdout)
    };
    let lines = measured(&["--ranks=1,2", "--micro-batches=2", "--alone", "--rounds=2"]);
    let runs = parse_runs(&lines).unwrap();
    let shape = |run: &ScalingRun| (run.round, run.scaling, run.ranks, run.micro_batches, run.tokens);
    let of_round = |round| {
        // A step has two micro-batches on one rank, and one on each of two ranks.
        let alone = [(round, Scaling::Alone, 2, 4, 256), (round, Scaling::Alone, 2, 2, 128)];
        [[(round, Scaling::Strong, 1, 2, 128), (round, Scaling::Strong, 2, 2, 128)], alone].concat()
    };
    let shapes: Vec<_> = runs.iter().map(shape).collect();
    assert_eq!(shapes, [of_round(1), of_round(2)].concat());
    let one_micro_batch = parse_runs(&measured(&["--ranks=1"])).unwrap();
    let of_one_rank = |micro_batches: usize| {
        let mut all = runs.iter().chain(&one_micro_batch);
        all.find(|run| (run.scaling, run.ranks, run.micro_batches) == (Scaling::Strong, 1, micro_batches))
    };
    for run in &runs {
        let each: Vec<f64> = run.tokens_per_second_of_each().collect();
        assert!(run.by_rank.iter().enumerate().all(|(rank, figures)| figures.rank == rank));
        match run.scaling {
            // Worlds that communicated would not have the bits of one rank.
            Scaling::Alone => {
                let one = of_one_rank(run.micro_batches / run.ranks).unwrap();
                assert!((run.tokens_per_second() - each.iter().sum::<f64>()).abs() < 1e-6 * each[0]);
                assert_eq!(one.loss.to_bits(), run.loss.to_bits(), "{run:?}");
            }
            _ => assert_eq!(run.step_seconds, run.by_rank[0].step_seconds),
        }
    }
    let file = directory.path().join("runs.jsonl");
    std::fs::write(&file, &lines).unwrap();
    let reported = text(&bench(&["--report", file.to_str().unwrap()]).stdout);
    let words = [
        "efficiency  against alone",
        "alone    –",
        "alone, 1 micro-batch each: rank ",
        "alone, 2 micro-batches each: rank ",
        "2 rounds, of which the median counts",
        "strong, tree: the last loss is the same to the bit on 1, 2 ranks",
    ];
    assert!(words.iter().all(|words| reported.contains(words)), "{reported}");
}

#[test]
fn all_ranks_warm_up_with_the_same_steps() {
    let device = DeviceChoice::Cpu;
    let measure = |ranks: usize, scaling: Scaling, time: Duration| {
        let options =
            BenchOptions { device, steps: 2, warm_up: 1, warm_up_time: time, profile: true, trace: None };
        let (data, worlds) = if scaling == Scaling::Alone { (1, ranks) } else { (ranks, 1) };
        let config = config(GPT, &[&format!("parallel.data={data}"), "train.steps=1000000"]);
        let case = ScalingCase { model: "tiny".to_owned(), scaling, config, worlds };
        let began = std::time::Instant::now();
        (bench_scaling(case, &options).unwrap(), began.elapsed())
    };
    let time = Duration::from_secs(1);
    for (ranks, scaling) in [(1, Scaling::Strong), (2, Scaling::Strong), (2, Scaling::Alone)] {
        let (short, _) = measure(ranks, scaling, Duration::ZERO);
        assert_eq!((short.warm_up_steps, short.warm_up_seconds), (1, 0.0));
        let (long, took) = measure(ranks, scaling, time);
        assert!(took >= time && long.warm_up_seconds == 1.0, "{took:?}");
        assert!(long.warm_up_steps > 2, "{long:?}");
        assert_eq!(long.steps, 2);
        assert_eq!(short.loss.to_bits(), long.loss.to_bits(), "the loss is that of the same step");
    }
}

#[test]
fn a_timeline_has_the_steps_of_all_ranks() {
    let directory = tempfile::tempdir().unwrap();
    let traces = directory.path().join("traces");
    let trace = format!("--trace={}", traces.display());
    let measured = bench(&[&TINY[..], &["--ranks=2", "--weak", "--reduction=tree", &trace]].concat());
    assert!(measured.status.success(), "{}", text(&measured.stderr));
    let written = std::fs::read_to_string(traces.join("weak-tree-2.json")).unwrap();
    let written: serde_json::Value = serde_json::from_str(&written).unwrap();
    for rank in 0..2 {
        let spans = written["traceEvents"].as_array().unwrap().iter();
        let spans: Vec<_> = spans.filter(|event| event["pid"] == rank && event["ph"] == "X").collect();
        for phase in ["inputs", "forward", "backward", "reduce, exposed", "optimizer"] {
            assert!(spans.iter().any(|span| span["name"] == phase), "{phase}: {spans:?}");
        }
        // Spans of a track follow one another from the beginning of the step.
        let times = |span: &serde_json::Value| (span["ts"].as_f64().unwrap(), span["dur"].as_f64().unwrap());
        let mut ends = std::collections::BTreeMap::new();
        for span in spans {
            let ((begin, length), after) = (times(span), ends.entry(span["tid"].as_u64()).or_insert(0.0));
            assert!(begin >= *after - 1e-3 && length >= 0.0, "{span} after {after}");
            *after = begin + length;
        }
    }
    std::fs::write(directory.path().join("file"), "").unwrap();
    let refused = bench(&[&TINY[..], &[&format!("--trace={}/file", directory.path().display())]].concat());
    assert_eq!(refused.status.code(), Some(2));
}

#[test]
fn runs_do_not_affect_the_next_run() {
    let device = DeviceChoice::Cpu;
    let options = BenchOptions {
        device,
        steps: 2,
        warm_up: 1,
        warm_up_time: Duration::ZERO,
        profile: true,
        trace: None,
    };
    let measure = |ranks: usize| {
        let config = config(GPT, &[&format!("parallel.data={ranks}"), "train.steps=1000"]);
        let model = "tiny".to_owned();
        let scaling = Scaling::Strong;
        bench_scaling(ScalingCase { model, scaling, config, worlds: 1 }, &options).unwrap()
    };
    let peaks = |run: &ScalingRun| {
        run.by_rank.iter().map(|r| (r.peak_allocated_bytes, r.peak_reserved_bytes)).collect::<Vec<_>>()
    };
    let alone = [4, 2, 1].map(measure);
    let again = [1, 2, 4].map(measure);
    for (one, other) in alone.iter().zip(again.iter().rev()) {
        assert_eq!(
            (one.ranks, peaks(one), one.loss.to_bits()),
            (other.ranks, peaks(other), other.loss.to_bits())
        );
    }
    assert_eq!(alone[0].loss.to_bits(), alone[2].loss.to_bits());
}
