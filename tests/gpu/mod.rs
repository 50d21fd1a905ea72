//! Tests of the program on a GPU, and of its refusal on hosts without one. With a single GPU, tests of
//! several ranks share it; NCCL and peer access between GPUs need two.

mod shared;

use std::path::Path;
use std::process::Command;
use std::sync::{PoisonError, RwLock};

use crate::common;
use crate::common::devices::{gpu, own_gpus};
use crate::common::jobs::{has_mpi, mpirun, workplace};
use serde_json::Value;

const MIB: u64 = 1 << 20;

/// Lock for tests that read the driver's account, which covers the whole GPU; they run alone.
static GPUS: RwLock<()> = RwLock::new(());

/// Trains in `directory` on the first GPU. Returns the output and the summary.
fn train(directory: &Path, run: &str, more: &[&str]) -> (String, Value) {
    train_with(on_the_first_gpu(), directory, run, more)
}

fn on_the_first_gpu() -> Command {
    let mut command = Command::new(common::program());
    command.env("CUDA_VISIBLE_DEVICES", "0");
    command
}

/// Like [`train`], with a prepared command: the program or a launcher.
fn train_with(command: Command, directory: &Path, run: &str, more: &[&str]) -> (String, Value) {
    let _beside_others = GPUS.read().unwrap_or_else(PoisonError::into_inner);
    complete(command, directory, run, more)
}

fn complete(mut command: Command, directory: &Path, run: &str, more: &[&str]) -> (String, Value) {
    command
        .current_dir(directory)
        .args(["train", "run.toml", "--device", "cuda", "--run-dir", run])
        .args(more);
    let output = command.output().unwrap();
    let message = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{message}");
    let summary = std::fs::read_to_string(directory.join(run).join("summary.json")).unwrap();
    (message, serde_json::from_str(&summary).unwrap())
}

const HALF: [&str; 6] =
    ["--set", "precision.compute=bf16", "--set", "model.width=128", "--set", "model.heads=4"];

/// Like [`HALF`], with bf16 gradients.
const HALF_GRADIENTS: [&str; 8] = [
    "--set",
    "precision.compute=bf16",
    "--set",
    "model.width=128",
    "--set",
    "model.heads=4",
    "--set",
    "precision.gradients=bf16",
];

#[test]
fn a_missing_gpu_is_refused_with_the_reason() {
    let directory = workplace();
    let mut command = Command::new(common::program());
    command
        .current_dir(&directory)
        .env("CUDA_VISIBLE_DEVICES", "")
        .args(["train", "run.toml", "--device", "cuda"]);
    let output = command.output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(message.contains("--device cuda: ") && message.contains("--device cpu"), "{message}");
    let reason = if gpu() { "CUDA_VISIBLE_DEVICES is \"\"" } else { "NVIDIA" };
    assert!(message.contains(reason), "{message}");
    assert!(!directory.path().join("runs").exists());
}

#[test]
fn two_runs_have_the_same_bits_and_one_rank_does_the_work_of_four() {
    if !gpu() {
        return;
    }
    let directory = workplace();
    for more in [&[][..], &HALF, &HALF_GRADIENTS] {
        let train_on = |run: &str, data: &str| {
            let data = format!("parallel.data={data}");
            train(directory.path(), run, &[more, &["--set", &data]].concat())
        };
        let (_, first) = train_on("first", "1");
        let (_, second) = train_on("second", "1");
        let (message, four) = train_on("four", "4");
        assert_eq!((&first["device"], &first["world_size"]), (&"cuda".into(), &1.into()));
        assert!(message.contains("one rank does the work of the 4"), "{message}");
        assert!(message.contains("parallel.ranks_per_device = 4 runs all of them on it"), "{message}");
        for other in [&second, &four] {
            assert_eq!(first["weights_sha256"], other["weights_sha256"]);
            assert_eq!(first["losses"], other["losses"]);
        }
        for run in ["first", "second", "four"] {
            std::fs::remove_dir_all(directory.path().join(run)).unwrap();
        }
    }
}

/// Uses half precision, in which differently fused kernels round differently: each cut closes the residual
/// stream, and a recomputed segment omits its last matmul.
#[test]
fn recomputation_keeps_the_bits() {
    if !gpu() {
        return;
    }
    let directory = workplace();
    for more in [&[][..], &HALF, &HALF_GRADIENTS] {
        let train_with_recompute = |recompute: &str| {
            let recompute = format!("memory.recompute={recompute}");
            let sets = ["--set", "model.layers=3", "--set", &recompute];
            train(directory.path(), "run", &[more, &sets].concat()).1
        };
        let mut all = Vec::new();
        for recompute in ["none", "block", "2"] {
            all.push(train_with_recompute(recompute));
            std::fs::remove_dir_all(directory.path().join("run")).unwrap();
        }
        for other in &all[1..] {
            assert_eq!(all[0]["losses"], other["losses"], "{more:?}");
            assert_eq!(all[0]["weights_sha256"], other["weights_sha256"], "{more:?}");
        }
    }
}

#[test]
fn bf16_learns_as_f32_does() {
    if !gpu() {
        return;
    }
    let directory = workplace();
    let steps = ["--set", "train.steps=60"];
    let losses = |summary: &Value| -> Vec<f64> {
        summary["losses"].as_array().unwrap().iter().map(|loss| loss.as_f64().unwrap()).collect()
    };
    let run_losses =
        |run: &str, sets: &[&str]| losses(&train(directory.path(), run, &[sets, &steps].concat()).1);
    let single = run_losses("single", &HALF[2..]);
    for (run, sets) in [("half", &HALF[..]), ("gradients", &HALF_GRADIENTS)] {
        let half = run_losses(run, sets);
        assert!(half[59] < 0.8 * half[0], "{half:?}");
        for (half, single) in half.iter().zip(&single) {
            assert!((half - single).abs() < 0.03 * single, "{run}: {half} {single}");
        }
    }
}

#[test]
fn a_resumed_run_ends_with_the_same_bits() {
    if !gpu() {
        return;
    }
    let directory = workplace();
    for more in [&[][..], &HALF, &HALF_GRADIENTS] {
        let with = |run: &str, rest: &[&str]| {
            train(directory.path(), run, &[more, &["--set", "checkpoint.every=3"], rest].concat()).1
        };
        let whole = with("whole", &["--set", "train.steps=6"]);
        std::fs::remove_dir_all(directory.path().join("whole/checkpoints/step-000006")).unwrap();
        let resumed = with("whole", &["--set", "train.steps=6", "--resume"]);
        assert_eq!(resumed["resumed_after_step"], 3);
        assert_eq!(whole["weights_sha256"], resumed["weights_sha256"]);
        std::fs::remove_dir_all(directory.path().join("whole")).unwrap();
    }
}

#[test]
fn every_device_byte_is_accounted_for_and_steady_steps_do_not_call_the_driver() {
    if !gpu() {
        return;
    }
    let directory = workplace();
    let _alone = GPUS.write().unwrap_or_else(PoisonError::into_inner);
    for more in [&[][..], &HALF, &HALF_GRADIENTS] {
        let run_steps = |run: &str, steps: &str| {
            let steps = format!("train.steps={steps}");
            complete(
                on_the_first_gpu(),
                directory.path(),
                run,
                &[more, &["--set", &steps, "--set", "train.validate_every=0"]].concat(),
            )
        };
        let (message, long) = run_steps("long", "40");
        let (_, short) = run_steps("short", "3");
        assert!(message.contains("device by rank") && message.contains("used (driver)"), "{message}");
        assert!(message.contains("Every rank used what was planned, to the byte."), "{message}");
        let value = |summary: &Value, name: &str| summary["ranks"][0][name].as_u64().unwrap();
        for name in ["driver_allocations", "driver_frees", "reserved_bytes", "allocated_bytes"] {
            assert_eq!(value(&long, name), value(&short, name), "{name}");
        }
        assert!(value(&long, "context_bytes") > 0);
        assert_eq!(value(&long, "device_contexts"), 1);
        assert!(value(&long, "unaccounted_bytes") <= 64 * MIB, "{message}");
        assert_eq!(value(&long, "unaccounted_growth_bytes"), 0, "{message}");
        for run in ["long", "short"] {
            std::fs::remove_dir_all(directory.path().join(run)).unwrap();
        }
    }
}

/// Checks that pipelines with every schedule, on several GPUs or sharing one, have the bits of one rank and
/// the planned bytes.
#[test]
fn stages_on_several_gpus_have_the_bits_of_one() {
    let sizes = world_sizes();
    if sizes.is_empty() {
        return;
    }
    let directory = workplace();
    for more in [&[][..], &HALF, &HALF_GRADIENTS] {
        let set = |key: &str| ["--set".to_owned(), key.to_owned()];
        let common =
            ["model.layers=4", "train.global_batch_size=16", "optim.clip_norm=0.1"].map(set).concat();
        let train_as = |command: Command, run: &str, grid: &[&str]| {
            let grid: Vec<String> = grid.iter().flat_map(|key| set(key)).collect();
            let sets: Vec<&str> = common.iter().chain(&grid).map(String::as_str).collect();
            train_with(command, directory.path(), run, &[more, &sets].concat())
        };
        let (_, one) = train_as(on_the_first_gpu(), "one", &["parallel.data=1"]);
        for ranks in &sizes {
            let pipeline = format!("parallel.pipeline={ranks}");
            let stages = |schedule: &'static str| vec!["parallel.data=1", &pipeline, schedule];
            let schedules =
                ["parallel.schedule=gpipe", "parallel.schedule=1f1b", "parallel.schedule=zero-bubble"];
            let mut grids: Vec<Vec<&str>> = schedules.map(stages).into();
            match ranks {
                2 => grids.push(stages("parallel.schedule=interleaved")),
                _ => {
                    grids.push(vec!["parallel.data=2", "parallel.pipeline=2"]);
                    for stage in ["parallel.zero_stage=1", "parallel.zero_stage=3"] {
                        let grid =
                            ["parallel.data=2", "parallel.pipeline=2", "parallel.schedule=interleaved"];
                        grids.push([&grid[..], &[stage]].concat());
                    }
                }
            }
            let processes = grids.last().filter(|_| own_gpus() >= *ranks && has_mpi());
            let processes = processes.map(|grid| (true, grid.clone()));
            let threads = grids.into_iter().map(|grid| (false, grid));
            for (under_mpirun, grid) in threads.chain(processes) {
                let command = match under_mpirun {
                    true => on_gpus_under_mpirun(directory.path(), *ranks),
                    false => Command::new(common::program()),
                };
                let shares = sharing(*ranks);
                let grid = [&grid[..], &[&shares]].concat();
                let (message, several) = train_as(command, "several", &grid);
                assert!(
                    message.contains("Every rank used what was planned, to the byte."),
                    "{more:?} {grid:?}, mpirun {under_mpirun}: {message}"
                );
                assert_eq!(one["weights_sha256"], several["weights_sha256"], "{more:?} {grid:?}");
                assert_eq!(one["losses"], several["losses"], "{more:?} {grid:?}");
                std::fs::remove_dir_all(directory.path().join("several")).unwrap();
            }
        }
        std::fs::remove_dir_all(directory.path().join("one")).unwrap();
    }
}

/// Returns a command that runs the program as `ranks` processes that see all GPUs.
fn on_gpus_under_mpirun(directory: &Path, ranks: usize) -> Command {
    let mut command = mpirun(directory);
    command.env_remove("CUDA_VISIBLE_DEVICES");
    command.args(["-n", &ranks.to_string()]).arg(common::program());
    command
}

/// Returns world sizes 2 and 4 if there is a GPU, else none.
fn world_sizes() -> Vec<usize> {
    if gpu() { vec![2, 4] } else { Vec::new() }
}

/// Returns the setting with which `ranks` threads each have a GPU if there are enough, or share one.
fn sharing(ranks: usize) -> String {
    let on_one = if own_gpus() >= ranks { 1 } else { ranks };
    format!("parallel.ranks_per_device={on_one}")
}

#[test]
fn several_gpus_have_the_bits_of_one() {
    let sizes = world_sizes();
    if sizes.is_empty() {
        return;
    }
    let directory = workplace();
    for more in [&[][..], &HALF, &HALF_GRADIENTS] {
        let (_, one) = train(directory.path(), "one", &[more, &["--set", "parallel.data=1"]].concat());
        let same = |command: Command, what: &str, contexts: usize, sets: &[&str]| {
            let (message, several) = train_with(command, directory.path(), "several", &[more, sets].concat());
            assert!(message.contains("Every rank used what was planned, to the byte."), "{what}: {message}");
            let captures =
                !sets.iter().any(|set| set.starts_with("parallel.ranks_per_device") && !set.ends_with("=1"));
            assert_eq!(message.contains("steps are replayed as"), captures, "{what}: {message}");
            assert_eq!(one["weights_sha256"], several["weights_sha256"], "{what}");
            assert_eq!(one["losses"], several["losses"], "{what}");
            for rank in several["ranks"].as_array().unwrap() {
                assert_eq!(rank["device_contexts"], contexts, "{what}: GPUs that a process has a context on");
            }
            std::fs::remove_dir_all(directory.path().join("several")).unwrap();
        };
        for ranks in &sizes {
            let data = format!("parallel.data={ranks}");
            let shares = sharing(*ranks);
            for sharded in ["0", "1", "2", "3"].map(|stage| format!("parallel.zero_stage={stage}")) {
                let sets = ["--set", &data, "--set", &sharded, "--set", &shares];
                let command = Command::new(common::program());
                let contexts = if own_gpus() >= *ranks { *ranks } else { 1 };
                same(command, &format!("{ranks} threads, {sharded}, {shares}"), contexts, &sets);
                if own_gpus() >= *ranks && has_mpi() {
                    let command = on_gpus_under_mpirun(directory.path(), *ranks);
                    same(command, &format!("{ranks} processes, {sharded}"), 1, &sets);
                }
            }
        }
        std::fs::remove_dir_all(directory.path().join("one")).unwrap();
    }
}

/// Uses a sharded optimizer whose weights are large relative to a step's compute, so that they are still
/// being gathered when the next pass, a validation or a checkpoint reads them.
#[test]
fn weights_in_flight_are_waited_for() {
    let Some(ranks) = world_sizes().pop() else { return };
    let directory = workplace();
    let data = format!("parallel.data={ranks}");
    let shares = sharing(ranks);
    let run_with = |run: &str, sets: &[&str], flags: &[&str]| {
        let common = ["model.width=1024", "model.heads=8", "train.validate_every=2", &data, &shares];
        let sets: Vec<&str> = common.iter().chain(sets).flat_map(|set| ["--set", *set]).collect();
        train_with(Command::new(common::program()), directory.path(), run, &[&sets, flags].concat()).1
    };
    let whole = run_with("whole", &[], &[]);
    for peers in ["parallel.peer_access=kernel", "parallel.peer_access=off"] {
        let sets = ["parallel.zero_stage=1", "checkpoint.every=3", peers];
        let divided = run_with("divided", &sets, &[]);
        std::fs::remove_dir_all(directory.path().join("divided/checkpoints/step-000006")).unwrap();
        let resumed = run_with("divided", &sets, &["--resume"]);
        assert_eq!(resumed["resumed_after_step"], 3);
        for name in ["weights_sha256", "losses", "validation_loss"] {
            assert_eq!(whole[name], divided[name], "{name}, {ranks} GPUs, {peers}");
            assert_eq!(whole[name], resumed[name], "{name}, {ranks} GPUs, {peers}, resumed");
        }
        std::fs::remove_dir_all(directory.path().join("divided")).unwrap();
    }
}
