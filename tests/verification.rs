//! Tests of verifying micro-batches: it changes neither bits nor planned bytes, and detects inverted bits in
//! operators' results.

use std::path::Path;

use crate::common;
use crate::common::jobs::{self, Transport, text};
use crate::common::runs::{
    BOTTLENECKS, GPT, LLAMA, MLP, RESNET, WINDOWS_AND_CAPS, WINDOWS_AND_FACTORS, config,
};
use run::{RunOptions, TrainReport};
use system::fail_point;
use worker::DeviceChoice;

const EVERY_SECOND: &str = "train.verify_every=2";
const TENSOR: &str = "parallel.tensor_lanes=2";

/// Families, grids, precisions and other settings that affect how a micro-batch is computed.
const RUNS: &[(&str, &[&str])] = &[
    (GPT, &[]),
    (GPT, &["parallel.data=2", "model.dropout=0.1"]),
    (GPT, &["parallel.data=3", "train.global_batch_size=16", "memory.recompute=block"]),
    (GPT, &["parallel.data=4", "parallel.zero_stage=1", "train.verify_every=1"]),
    (GPT, &["parallel.data=2", "parallel.zero_stage=2", "model.dropout=0.1"]),
    (GPT, &["parallel.data=4", "parallel.zero_stage=3", "train.verify_every=1"]),
    (GPT, &["parallel.data=2", "parallel.zero_stage=3", "parallel.pipeline=2", "model.tied=false"]),
    (GPT, &["parallel.pipeline=2", "parallel.schedule=gpipe"]),
    (GPT, &["parallel.pipeline=2", "parallel.data=2", "parallel.schedule=zero-bubble"]),
    (GPT, &["parallel.pipeline=2", "parallel.schedule=interleaved", "model.layers=8"]),
    (GPT, &["parallel.tensor=2", "parallel.data=2", TENSOR]),
    (GPT, &["parallel.tensor=2", "parallel.pipeline=2", "parallel.zero_stage=2", TENSOR]),
    (GPT, &["parallel.data=2", "parallel.context=2", "parallel.tensor=2", TENSOR]),
    (GPT, &["parallel.context=2", "parallel.pipeline=2", "parallel.zero_stage=1"]),
    (GPT, &["parallel.lanes=2", "parallel.data=2", "train.global_batch_size=16"]),
    (GPT, &["parallel.data=2", "precision.compute=bf16", "model.width=64"]),
    (GPT, &["parallel.data=2", "precision.compute=f16", "precision.weights=f32", "model.width=64"]),
    (GPT, &["parallel.data=2", "precision.matmul=fp8", "model.width=64"]),
    (GPT, &["parallel.data=2", "train.freeze=['h.0.*']", "optim.kind=lion"]),
    (GPT, &["parallel.data=2", "lora.rank=4"]),
    (GPT, &["parallel.data=2", "train.on_out_of_memory=halve_micro_batch", "data.order=shuffled"]),
    (GPT, &["parallel.data=2", "memory.empty_cache_every=3", "train.steps=12"]),
    (LLAMA, &["parallel.data=2", "model.qk_norm=true"]),
    (LLAMA, WINDOWS_AND_CAPS),
    (LLAMA, WINDOWS_AND_FACTORS),
    (MLP, &["parallel.data=2"]),
    (RESNET, &["parallel.data=4"]),
    (RESNET, &["parallel.pipeline=2", "parallel.data=2"]),
    (BOTTLENECKS, &[]),
];

fn train(run_dir: &Path, text: &str, sets: &[&str]) -> TrainReport {
    let run_dir = Some(run_dir.to_owned());
    let options = RunOptions { device: DeviceChoice::Cpu, run_dir, quiet: true, ..RunOptions::default() };
    run::train(config(text, sets), options).unwrap_or_else(|error| panic!("{sets:?}: {error}"))
}

#[test]
fn a_verified_run_has_the_bits_of_others_and_the_planned_bytes() {
    let directory = tempfile::tempdir().unwrap();
    for (number, (text, sets)) in RUNS.iter().enumerate() {
        let path = |name: &str| directory.path().join(format!("{name}{number}"));
        // Both verifications of GPT's six steps are in the first four.
        let few: &[&str] = if *text == GPT { &["train.steps=4", "train.validate_every=3"] } else { &[] };
        let verified = train(&path("verified"), text, &[few, &[EVERY_SECOND], *sets].concat());
        assert_eq!(verified.unplanned, Some(Vec::new()), "{sets:?}");
        assert!(verified.divergences.is_empty(), "{sets:?}: {:?}", verified.divergences);
        let plain = train(&path("plain"), text, &[few, *sets, &["train.verify_every=0"]].concat());
        let hash =
            |report: &TrainReport| (report.summary.weights_sha256.clone(), report.summary.losses.clone());
        assert_eq!(hash(&verified), hash(&plain), "{sets:?}");
    }
}

/// An inverted bit: rank, execution of the micro-batch, result; and the faulty rank, if a third execution
/// identifies it.
type Planted = (usize, &'static str, usize, Option<usize>);

/// Grids with inverted bits.
const PLANTED: &[(&[&str], &[Planted])] = &[
    // The same rank executes again: one of its two results is wrong.
    (
        &["parallel.data=1"],
        &[(0, "step", 0, Some(0)), (0, "repetition", 31, Some(0)), (0, "step", 60, Some(0))],
    ),
    // Two ranks: a fault that occurs once is attributed, a fault in each execution is not.
    (&["parallel.data=2"], &[(1, "step", 5, Some(1)), (0, "repetition", 40, None), (1, "all", 17, None)]),
    (
        &["parallel.data=4"],
        &[
            (0, "step", 3, Some(0)),
            (3, "repetition", 22, Some(3)),
            (2, "all", 9, Some(2)),
            (1, "all", 55, Some(1)),
        ],
    ),
    (
        &["parallel.data=3", "parallel.zero_stage=1"],
        &[(2, "step", 12, Some(2)), (1, "repetition", 52, Some(1))],
    ),
    (&["parallel.data=4", "parallel.zero_stage=2"], &[(1, "step", 25, Some(1)), (0, "all", 58, Some(0))]),
    (&["parallel.data=3", "parallel.zero_stage=3"], &[(0, "step", 8, Some(0)), (2, "all", 50, Some(2))]),
    (&["parallel.data=3", "parallel.pipeline=2"], &[(4, "step", 4, Some(4)), (1, "repetition", 19, Some(1))]),
    (
        &[
            "parallel.data=3",
            "parallel.pipeline=2",
            "parallel.schedule=zero-bubble",
            "memory.recompute=block",
        ],
        &[(0, "step", 20, Some(0)), (5, "all", 11, Some(5))],
    ),
    (
        &["parallel.data=3", "parallel.tensor=2", TENSOR],
        &[(1, "step", 14, Some(1)), (4, "repetition", 48, Some(4))],
    ),
    (&["parallel.data=3", "parallel.context=2"], &[(1, "step", 14, Some(1)), (4, "repetition", 48, Some(4))]),
    (&["parallel.data=3", "model.dropout=0.1"], &[(0, "all", 2, Some(0)), (2, "step", 45, Some(2))]),
];

/// Returns the description of the result in which a rank inverted a bit.
fn planted_result(run_dir: &Path, rank: usize) -> String {
    let log = std::fs::read_to_string(run_dir.join(format!("logs/rank-{rank}.log"))).unwrap();
    let line = log.lines().find(|line| line.contains("planted in the ")).unwrap_or_else(|| panic!("{log}"));
    line.rsplit_once("planted in the ").unwrap().1.split_once(": ").unwrap().1.trim().to_owned()
}

#[test]
fn an_inverted_bit_is_found_and_named() {
    let transports = Transport::all();
    for (number, (grid, rank, runs, result, culprit)) in PLANTED
        .iter()
        .flat_map(|(grid, all)| {
            all.iter().map(move |(rank, runs, result, culprit)| (grid, rank, runs, result, culprit))
        })
        .enumerate()
    {
        let workplace = jobs::workplace();
        let sets = [*grid, &["train.verify_every=3"]].concat();
        let ranks = config(GPT, &sets).world_size();
        let transport = transports[number % transports.len()];
        let mut command = jobs::launcher(transport, workplace.path(), ranks);
        command.arg(common::program()).args(["train", "run.toml", "--run-dir", "out"]);
        command.args(sets.iter().flat_map(|set| ["--set", *set]));
        // The second verification, in step 6.
        command.env(fail_point::FLIP, format!("{rank}:6:{runs}:{result}:{}", 13 * number));
        let output = command.output().unwrap();
        let run_dir = workplace.path().join("out");
        let message = text(&output.stderr);
        let case = format!("{transport:?} {grid:?} rank {rank}, {runs}, {result}: {message}");
        assert_eq!(output.status.code(), Some(1), "{case}");
        let found = planted_result(&run_dir, *rank);
        assert!(
            message.contains("silent corruption in step 6") && message.contains(&found),
            "{case} {found}"
        );
        assert!(message.contains(&format!("rank {rank} (")), "{case}");
        let wrong = message.split(" computes wrongly").next().filter(|before| before.len() < message.len());
        let named = wrong.and_then(|before| before.rsplit_once("rank ")?.1.split(' ').next()?.parse().ok());
        assert_eq!(named, *culprit, "{case}");
    }
}
