//! Tests of ranks as MPI processes: the same bits as threads, agreement at the start, and one sentence for an
//! error.

use std::path::Path;
use std::process::{Command, Output};

use crate::common;
use crate::common::jobs::{
    Transport, arguments, has_mpi, history, launcher, mpirun, summary, text, train, workplace,
};
use crate::common::program;
use crate::common::sizes::{self, Sizes};
use telemetry::scaling::{Scaling, ScalingRun, read_runs};

/// Checks that the planned host memory of a process is within 5 % of the measured peak.
#[test]
fn the_planned_memory_of_a_process_matches_a_run() {
    if !has_mpi() {
        return;
    }
    const WIDE: &[&str] =
        &["model.kind=mlp", "model.sizes=[64, 2048, 2048, 64]", "parallel.bucket_bytes=1048576"];
    const DEEP: &[&str] =
        &["model.kind=gpt", "model.layers=12", "model.width=128", "model.heads=4", "model.context=64"];
    const ALL: &[&str] = &["data.kind=synthetic", "train.steps=3", "train.micro_batch_size=4"];
    let table: [&[&[&str]]; 4] = [
        &[WIDE, &["parallel.data=2", "checkpoint.minutes=0"]],
        &[WIDE, &["parallel.data=2"]],
        &[DEEP, &["parallel.data=2"]],
        &[DEEP, &["parallel.pipeline=2"]],
    ];
    for parts in table {
        let workplace = workplace();
        std::fs::write(workplace.path().join("host.toml"), "[model]\n").unwrap();
        let sets: Vec<&str> = ALL.iter().chain(parts.iter().copied().flatten()).copied().collect();
        let sets = [&sets[..], &["train.global_batch_size=16", "optim.warmup_steps=1"]].concat();
        let mut command = launcher(Transport::Mpi, workplace.path(), 2);
        command.arg(program()).args(["train", "host.toml", "--run-dir", "out"]);
        let output = command.args(sets.iter().flat_map(|set| ["--set", set])).output().unwrap();
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{message}");
        let together = message.split("planned: its 2 ranks together need ").nth(1);
        let together =
            together.and_then(|rest| rest.split(' ').next()).unwrap_or_else(|| panic!("{message}"));
        let together: f64 = together.replace(',', "").parse().unwrap();
        let planned = of_rank_0(together, workplace.path(), &sets);
        let measured = summary(&workplace.path().join("out"))["host_peak_bytes"].as_f64().unwrap();
        let off = 100.0 * (planned / measured - 1.0);
        assert!(off.abs() < 5.0, "{off:.1} % off: {planned} planned, {measured} measured, {sets:?}");
    }
}

/// Returns the host memory of rank 0 of two ranks that together need `together` bytes. Both share the
/// program, which is included in each process's peak; rank 0 copies the state of data-parallel ranks for
/// checkpoints.
fn of_rank_0(together: f64, directory: &Path, sets: &[&str]) -> f64 {
    let mut plan = Command::new(program());
    plan.args(["plan", "host.toml", "--json", "--device", "cpu"]).current_dir(directory);
    let output = plan.args(sets.iter().flat_map(|set| ["--set", set])).output().unwrap();
    let plan: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let part = |name: &str| {
        let mut parts = plan["fit"]["host"]["parts"].as_array().unwrap().iter();
        parts.find(|part| part["name"] == name).map_or(0.0, |part| part["bytes"].as_f64().unwrap())
    };
    let copy = if plan["grid"]["data"] == 2 { part("the copy for checkpoints") } else { 0.0 };
    let reserved = |rank: usize| plan["ranks"][rank]["peak_reserved_bytes"].as_f64().unwrap();
    (together + part("the program") + copy + reserved(0) - reserved(1)) / 2.0
}

#[test]
fn processes_threads_and_one_rank_alone_give_the_same_bits() {
    if !has_mpi() {
        return;
    }
    let mlp: &[&str] = &[
        "model.kind=mlp",
        "model.sizes=[3, 300, 300, 400, 300, 100]",
        "data.kind=synthetic",
        "optim.kind=sgd",
        "train.global_batch_size=16",
    ];
    let table: [(&str, &[&str]); 6] = [
        ("transformer", &[]),
        ("the optimizer's state in parts", &["parallel.zero_stage=1", "optim.clip_norm=0.1"]),
        ("weights in parts", &["parallel.zero_stage=3", "optim.clip_norm=0.1"]),
        ("sums of the transport", &["parallel.zero_stage=1", "parallel.reduction=nccl"]),
        ("several micro-batches a lane", &["train.global_batch_size=16", "optim.clip_norm=0.5"]),
        ("perceptron", mlp),
    ];
    for (name, sets) in table {
        let alone = history(Transport::Threads, 1, sets);
        assert_eq!(alone.0.len(), 6);
        for (transport, ranks) in [
            (Transport::Threads, 4),
            (Transport::Tcp, 4),
            (Transport::Mpi, 1),
            (Transport::Mpi, 2),
            (Transport::Mpi, 4),
        ] {
            assert_eq!(history(transport, ranks, sets), alone, "{name}: {transport:?}, {ranks} ranks");
        }
    }
}

/// Uses uneven numbers of lanes per rank, and lanes in several subtrees.
#[test]
fn any_number_of_processes_has_the_bits_of_one_rank() {
    let table: [(&[&str], &[usize]); 3] = [
        (&["train.global_batch_size=16", "parallel.lanes=8", "model.dropout=0.1"], &[7]),
        (&["train.global_batch_size=24", "parallel.lanes=6", "parallel.zero_stage=1"], &[4]),
        (&["train.global_batch_size=16", "parallel.lanes=8", "parallel.zero_stage=3"], &[5]),
    ];
    for (sets, sizes) in table {
        let alone = history(Transport::Threads, 1, sets);
        let grid = [sets, &["parallel.data=3", "parallel.pipeline=2"]].concat();
        for transport in Transport::of_processes() {
            for ranks in sizes {
                assert_eq!(history(transport, *ranks, sets), alone, "{transport:?}, {ranks} ranks, {sets:?}");
            }
            assert_eq!(history(transport, 6, &grid), alone, "{transport:?}, {grid:?}");
        }
    }
}

/// Asserts that every number of processes in an entry of [`sizes::LANES`] has the bits of one rank on every
/// grid, and resumes the runs of every other. Only runs if `PLIMSOLL_LONG_TESTS` is set.
fn assert_every_number_has_the_bits_of_one_rank(row: usize) {
    if !sizes::are_wanted() {
        return;
    }
    for Sizes { common, data } in sizes::rows(sizes::LANES[row], 1) {
        let common: Vec<&str> = common.iter().map(String::as_str).collect();
        let alone = history(Transport::Threads, 1, &common);
        for transport in Transport::all() {
            for (data, (pipeline, grid)) in data.iter().flat_map(|data| sizes::GRIDS.map(|grid| (data, grid)))
            {
                let size = [format!("parallel.data={data}"), format!("parallel.pipeline={pipeline}")];
                let size: Vec<&str> = size.iter().map(String::as_str).collect();
                let sets = [&common[..], &size, grid].concat();
                let of_grid = history(transport, data * pipeline, &sets);
                assert_eq!(of_grid, alone, "{transport:?}, {sets:?}");
            }
            for first in data {
                assert_resumes_on_each(transport, *first, data, &common, &alone);
            }
        }
    }
}

#[test]
fn every_number_of_processes_with_8_lanes_has_the_bits_of_one_rank() {
    assert_every_number_has_the_bits_of_one_rank(0);
}

#[test]
fn every_number_of_processes_with_12_lanes_has_the_bits_of_one_rank() {
    assert_every_number_has_the_bits_of_one_rank(1);
}

#[test]
fn every_number_of_processes_with_35_lanes_has_the_bits_of_one_rank() {
    assert_every_number_has_the_bits_of_one_rank(2);
}

/// Asserts that a run stopped after one step on `first` data-parallel ranks ends on any number of ranks like
/// a single-rank run, whose [`history`] is `alone`.
fn assert_resumes_on_each(
    transport: Transport,
    first: usize,
    sizes: &[usize],
    common: &[&str],
    alone: &(Vec<u64>, String),
) {
    let workplace = workplace();
    let on = |ranks: usize, more: &[&str]| {
        let zero = format!("parallel.zero_stage={}", ranks % 4);
        let sets = [common, &["checkpoint.every=1", "checkpoint.keep=3", &zero]].concat();
        let output = train(transport, workplace.path(), ranks, &sets).args(more).output().unwrap();
        let name = format!("{transport:?}, {first} to {ranks} ranks, {common:?}");
        assert_eq!(output.status.code(), Some(0), "{name}: {}", text(&output.stderr));
        assert!(text(&output.stdout).contains("Every rank used what was planned"), "{name}");
        let summary = summary(&workplace.path().join("out"));
        let losses =
            summary["losses"].as_array().unwrap().iter().map(|loss| loss.as_f64().unwrap().to_bits());
        assert_eq!(summary["weights_sha256"], alone.1, "{name}");
        assert_eq!(losses.collect::<Vec<u64>>(), alone.0, "{name}");
    };
    on(first, &[]);
    let checkpoint = |step: u64| workplace.path().join(format!("out/checkpoints/step-{step:06}"));
    for ranks in sizes {
        // A step that ends while the previous checkpoint is still being written has no checkpoint.
        for later in [2, 3].map(checkpoint).iter().filter(|later| later.exists()) {
            std::fs::remove_dir_all(later).unwrap();
        }
        assert!(checkpoint(1).exists());
        on(*ranks, &["--resume"]);
    }
}

#[test]
fn stages_have_the_bits_of_one_rank() {
    if !has_mpi() {
        return;
    }
    let common = ["model.layers=4", "optim.clip_norm=0.1"];
    let alone = history(Transport::Threads, 1, &common);
    let table: [(usize, &[&str]); 6] = [
        (2, &["parallel.data=1", "parallel.pipeline=2"]),
        (2, &["parallel.data=1", "parallel.pipeline=2", "parallel.schedule=interleaved"]),
        (4, &["parallel.data=1", "parallel.pipeline=4", "parallel.schedule=zero-bubble"]),
        (4, &["parallel.data=2", "parallel.pipeline=2", "parallel.zero_stage=1"]),
        (4, &["parallel.data=2", "parallel.pipeline=2", "parallel.zero_stage=3"]),
        (4, &["parallel.data=4", "parallel.zero_stage=2", "parallel.shard=2"]),
    ];
    for (ranks, grid) in table {
        let sets = [&common[..], grid].concat();
        assert_eq!(history(Transport::Mpi, ranks, &sets), alone, "{grid:?}");
    }
    let lanes = ["model.layers=4", "model.heads=4", "optim.clip_norm=0.1", "parallel.tensor_lanes=4"];
    assert_as_alone(
        &lanes,
        &[
            (2, &["parallel.data=1", "parallel.tensor=2"]),
            (4, &["parallel.data=1", "parallel.tensor=2", "parallel.pipeline=2"]),
            (8, &["parallel.data=2", "parallel.tensor=4", "parallel.zero_stage=3"]),
        ],
    );
    let pieces = ["model.layers=4", "optim.clip_norm=0.1", "parallel.context_lanes=4"];
    assert_as_alone(
        &pieces,
        &[
            (2, &["parallel.data=1", "parallel.context=2", "parallel.zero_stage=2"]),
            (4, &["parallel.data=1", "parallel.context=2", "parallel.pipeline=2"]),
            (4, &["parallel.data=2", "parallel.context=2", "parallel.zero_stage=3"]),
        ],
    );
}

/// Asserts that processes on each grid have the history of one rank.
fn assert_as_alone(common: &[&str], table: &[(usize, &[&str])]) {
    let alone = history(Transport::Threads, 1, common);
    for (transport, (ranks, grid)) in Transport::of_processes()
        .into_iter()
        .zip(table.iter().rev())
        .chain(table.iter().map(|row| (Transport::Mpi, row)))
    {
        let sets = [common, grid].concat();
        assert_eq!(history(transport, *ranks, &sets), alone, "{transport:?}, {grid:?}");
    }
}

/// Checks that a grid of processes samples and evaluates like one rank as threads, also from the command
/// line.
#[test]
fn processes_sample_and_evaluate_as_one_rank() {
    if !has_mpi() {
        return;
    }
    let workplace = workplace();
    let trained = train(Transport::Threads, workplace.path(), 1, &["checkpoint.every=100"]).output().unwrap();
    assert_eq!(trained.status.code(), Some(0), "{}", text(&trained.stderr));
    let sample = ["sample", "out", "--prompt", "The load", "--prompt", "line", "--seed=3", "--tokens=40"];
    for command in [&sample[..], &["eval", "out"]] {
        let message = |ranks: usize, sets: &[&str]| {
            let mut launched = mpirun(workplace.path());
            // Launchers change some characters of forwarded output.
            let own_file = "exec \"$@\" > said-$OMPI_COMM_WORLD_RANK";
            launched.args(["-n", &ranks.to_string(), "sh", "-c", own_file, "sh"]);
            launched.arg(program()).args(command).arg("--json");
            launched.args(sets.iter().flat_map(|set| ["--set", set]));
            let output = launched.output().unwrap();
            assert_eq!(output.status.code(), Some(0), "{sets:?}: {}", text(&output.stderr));
            // Only one rank prints the JSON object.
            let of_rank = |rank: usize| std::fs::read(workplace.path().join(format!("said-{rank}"))).unwrap();
            assert!((1..ranks).all(|rank| of_rank(rank).is_empty()));
            let message: serde_json::Value = serde_json::from_slice(&of_rank(0)).unwrap();
            for rank in message["memory"].as_array().into_iter().flatten() {
                assert_eq!(rank["planned"], rank["used"], "{sets:?}");
            }
            [&message["texts"], &message["loss"], &message["tokens"], &message["data"]].map(Clone::clone)
        };
        let alone = message(1, &["parallel.data=1"]);
        assert!(alone[2].as_u64().is_some_and(|tokens| tokens > 50), "{alone:?}");
        let sharded = [&["parallel.data=2", "parallel.zero_stage=3"][..]];
        let evaluated = sharded.into_iter().filter(|_| command[0] == "eval");
        let grids = [&["parallel.data=2"][..], &["parallel.data=1", "parallel.pipeline=2"]];
        for grid in grids.into_iter().chain(evaluated) {
            assert_eq!(message(2, grid), alone, "{grid:?}");
        }
    }
}

#[test]
fn every_log_begins_with_the_rank_and_its_host() {
    if !has_mpi() {
        return;
    }
    let workplace = workplace();
    let output = train(Transport::Mpi, workplace.path(), 2, &[]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    for rank in 0..2 {
        let log =
            std::fs::read_to_string(workplace.path().join(format!("out/logs/rank-{rank}.log"))).unwrap();
        let first = log.lines().next().unwrap();
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        assert!(first.contains(&format!("rank {rank} of 2 on {}", host.trim())), "{first}");
        assert!(first.contains("computing on"), "{first}");
    }
}

/// Checks that `benches/scaling/run` starts one job per run, also for independent processes.
#[test]
fn the_scaling_suite_starts_jobs_in_turn() {
    if !has_mpi() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let suite = |more: &[&str]| {
        let mut command = Command::new(common::root().join("benches/scaling/run"));
        command.env("PLIMSOLL", program()).env("CUDA_VISIBLE_DEVICES", "").arg("--out").arg(directory.path());
        command.args(["--device=cpu", "--model=small", "--micro-batch-size=2", "--steps=2"]);
        command.args(["--ranks", "1,2", "--scaling", "weak", "--alone", "--rounds", "2"]).args(more);
        command.args(["--set=model.layers=1", "--set=model.width=32", "--set=model.heads=2"]);
        command.args(["--set=model.context=32", "--set=model.vocabulary=64"]).output().unwrap()
    };
    let output = suite(&["--warm-up=1", "--warm-up-seconds=0.05"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let runs = read_runs(&directory.path().join("runs.jsonl")).unwrap();
    let shape = |run: &ScalingRun| (run.round, run.scaling, run.ranks, run.micro_batches);
    let of_round =
        |round| [(round, Scaling::Weak, 1, 1), (round, Scaling::Weak, 2, 2), (round, Scaling::Alone, 2, 2)];
    assert_eq!(runs.iter().map(shape).collect::<Vec<_>>(), [of_round(1), of_round(2)].concat());
    assert!(runs.iter().all(|run| run.ranks_are == "processes" && run.warm_up_seconds == 0.05));
    let table = text(&output.stdout);
    for words in ["against alone", "alone, 1 micro-batch each: rank ", "2 rounds, of which", "efficiency.svg"]
    {
        assert!(table.contains(words), "{words}: {table}");
    }
    let refused = suite(&["--first-round=2"]);
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused.stderr));
    // Each job is one run.
    for (arguments, sentence) in [
        (["--ranks=1,2", "--rounds=2"], "--rounds 2: under a launcher, a job measures one run once"),
        (["--ranks=1,2", "--alone"], "and 2 have its number of ranks"),
    ] {
        let mut command = mpirun(directory.path());
        command.args(["-n", "2"]).arg(program()).args(["bench", "scaling", "--device=cpu", "--model=small"]);
        let output = command.args(arguments).output().unwrap();
        let message = message(&output);
        assert_eq!(output.status.code(), Some(2), "{message:?}");
        assert!(message.len() == 1 && message[0].contains(sentence), "{message:?}");
    }
}

/// Returns Plimsoll's lines, without the launcher's.
fn message(output: &Output) -> Vec<String> {
    let lines = text(&output.stderr);
    lines.lines().filter(|line| line.starts_with("plimsoll: ")).map(str::to_owned).collect()
}

#[test]
fn an_error_is_reported_once_with_status_two() {
    if !has_mpi() {
        return;
    }
    let table: [(usize, &[&str], &str); 5] = [
        (3, &["--set", "parallel.data=2"], "the launcher has started 3 processes, and the configuration has"),
        (2, &["--set", "parallel.data=2", "--ranks", "2"], "--ranks 2: the launcher has started 2 processes"),
        (2, &["--set", "parallel.dat=2"], "unknown key parallel.dat: did you mean parallel.data?"),
        (2, &["--set", "parallel.data=2", "--set", "data.paths=['none.txt']"], "none.txt"),
        (
            2,
            &["--set", "parallel.data=2", "--set", "memory.limit_bytes=1000000"],
            "; memory.limit_bytes allows 1,000,000",
        ),
    ];
    for (ranks, sets, expected) in table {
        let workplace = workplace();
        let mut command = mpirun(workplace.path());
        command.args(["-n", &ranks.to_string()]).arg(program()).args(["train", "run.toml"]).args(sets);
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{sets:?}: {}", text(&output.stderr));
        let message = message(&output);
        assert!(message.len() == 1 && message[0].contains(expected), "{sets:?}: {message:?}");
        assert!(!workplace.path().join("runs").exists(), "{sets:?}");
    }
}

/// Gives two ranks different inputs: rank 0 must report the first difference before anything starts.
#[test]
fn a_rank_that_differs_is_named() {
    if !has_mpi() {
        return;
    }
    let table: [(&str, &str, &str); 3] = [
        (
            "train.seed=2",
            "",
            "rank 1 on HOST has another configuration, `seed = 2` and not `seed = 1`, than rank 0",
        ),
        ("data.paths=['other.txt']", "", "rank 1 on HOST: "),
        (
            "train.seed=1",
            "PLIMSOLL_ALLOC_CONF=max_split_size_mb:30",
            "rank 1 on HOST has another default of memory.allocator (PLIMSOLL_ALLOC_CONF, ulimit -v), max_split_size_mb:30",
        ),
    ];
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    for (set, variable, expected) in table {
        let workplace = workplace();
        let mut command = mpirun(workplace.path());
        command.args(["-n", "1"]).arg(program()).args(arguments(2, &["train.seed=1"]));
        command.args([":", "-n", "1", "env", if variable.is_empty() { "X=" } else { variable }]);
        command.arg(program()).args(arguments(2, &[set]));
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{set}: {}", text(&output.stderr));
        let message = message(&output);
        assert!(
            message.len() == 1 && message[0].contains(&expected.replace("HOST", host.trim())),
            "{set}: {message:?}"
        );
        assert!(!workplace.path().join("out").exists(), "{set}");
    }
    // Equal configurations, but a different corpus on one rank.
    let workplace = workplace();
    let elsewhere = common::jobs::workplace();
    std::fs::write(elsewhere.path().join("corpus.txt"), "Another text.\n".repeat(520)).unwrap();
    let mut command = mpirun(workplace.path());
    command.args(["-n", "1"]).arg(program()).args(arguments(2, &[]));
    command.args([":", "-n", "1", "-wdir"]).arg(elsewhere.path()).arg(program()).args(arguments(2, &[]));
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
    let message = message(&output);
    assert!(message.len() == 1 && message[0].contains("has another corpus, "), "{message:?}");
}
