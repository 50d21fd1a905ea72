//! Tests of the command line: exit statuses, messages and files.

mod attention;
mod averages;
mod benchmarks;
mod counts;
mod ending;
mod images;
mod models;
mod new;
mod predict;
mod readers;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output};

use crate::common;
use crate::common::jobs::interruptible;
use crate::common::runs::GPT;

fn plimsoll(directory: &Path) -> Command {
    let mut command = Command::new(common::program());
    // These tests use the CPU even on hosts with a GPU.
    command.current_dir(directory).env("CUDA_VISIBLE_DEVICES", "");
    for variable in common::jobs::FOREIGN {
        command.env_remove(variable);
    }
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Creates a directory with a corpus and a configuration.
fn workplace() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let line = "The load line of a ship says how much she may carry, and in which waters.\n";
    std::fs::write(directory.path().join("corpus.txt"), line.repeat(100)).unwrap();
    std::fs::write(directory.path().join("empty.txt"), "").unwrap();
    let paths = r#"paths = ["ARCHITECTURE.md", "crates/tensor/src/*.rs"]"#;
    std::fs::write(directory.path().join("run.toml"), GPT.replace(paths, r#"paths = ["corpus.txt"]"#))
        .unwrap();
    directory
}

fn entries(directory: &Path) -> Vec<String> {
    let mut names: Vec<_> = std::fs::read_dir(directory)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn wrong_input_is_refused_in_one_sentence_and_leaves_no_file() {
    let table: &[(&[&str], &str)] = &[
        (
            &["--set", "model.widht=64"],
            "--set model.widht=64: unknown key model.widht: did you mean model.width?",
        ),
        (&["--set", "model.layers=many"], "model.layers takes"),
        (&["--set", "model.layers=0"], "model.layers"),
        (&["--set", "model.width=33"], "model.width = 33 is not a multiple of model.heads = 2"),
        (&["--set", "parallel.data=1000"], "parallel.data = 1000 is more than parallel.lanes"),
        (&["--set", "parallel.lanes=1000"], "parallel.lanes = 1000 does not divide"),
        (
            &["--set", "parallel.pipeline=3"],
            "2 layers cannot be divided into 3 stages: a stage would be empty",
        ),
        (
            &["--set", "parallel.pipeline=2", "--set", "parallel.partition=[1, 2]"],
            "parallel.partition = [1, 2]: the stages' layers add up to 3; the model has 2",
        ),
        (&["--set", "precision.compute=bf16", "--set", "model.heads=8"], "heads of 8, 16, 24, … 256 values"),
        (
            &["--set", "precision.gradients=bf16"],
            "precision.gradients = \"bf16\" needs precision.compute = \"bf16\", and it is \"f32\"",
        ),
        (
            &[
                "--set",
                "precision.gradients=f16",
                "--set",
                "precision.compute=bf16",
                "--set",
                "model.heads=1",
            ],
            "precision.gradients = \"f16\" needs precision.compute = \"f16\", and it is \"bf16\"",
        ),
        (&["--ranks", "3"], "--ranks 3"),
        (&["--device", "cuda"], "--device cuda"),
        (&["--device", "tpu"], "--device tpu"),
        (&["--set", "data.paths=['missing.txt']"], "missing.txt"),
        (&["--set", "data.paths=['*.md']"], "*.md"),
        (&["--set", "data.paths=['empty.txt']"], "empty.txt"),
        (&["--set", "data.paths=['corpus.txt/x']"], "corpus.txt/x"),
        (&["--set", "memory.limit_bytes=1000000"], "; memory.limit_bytes allows 1,000,000"),
        // 40 TB of parameters.
        (
            &["--set", "model.layers=2000", "--set", "model.width=18432"],
            "the run does not fit on this device: rank 0",
        ),
        (&["--set", "memory.allocator=max_split_size_mb:1"], "max_split_size_mb"),
        (&["--set", "model.context=100000"], "context"),
    ];
    let workplace = workplace();
    let before = entries(workplace.path());
    for (arguments, expected) in table {
        let output =
            plimsoll(workplace.path()).args(["train", "run.toml"]).args(*arguments).output().unwrap();
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
        assert!(error.contains(expected), "{arguments:?}: {error}");
        assert_eq!(error.trim_end().lines().count(), 1, "{arguments:?}: {error}");
        assert_eq!(entries(workplace.path()), before, "{arguments:?}");
    }
}

#[test]
fn an_error_in_a_file_names_its_line() {
    let workplace = workplace();
    let file = workplace.path().join("run.toml");
    let table: &[(&str, &str, &str)] = &[
        ("heads = 2", "heads = 2\nheds = 3", "run.toml:6: unknown key model.heds: did you mean model.heads?"),
        ("width = 32", "width = \"wide\"", "run.toml:6: model.width takes"),
        ("layers = 2", "layers = ", "run.toml:4:"),
        ("paths = [\"corpus.txt\"]", "paths = [\"nothing.txt\"]", "run.toml:10: data.paths:"),
    ];
    let good = std::fs::read_to_string(&file).unwrap();
    for (from, to, expected) in table {
        assert!(good.contains(from), "{from}");
        std::fs::write(&file, good.replacen(from, to, 1)).unwrap();
        let output = plimsoll(workplace.path()).args(["train", "run.toml"]).output().unwrap();
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(expected), "{to}: {error}");
    }
}

fn launched(variables: &[(&str, &str)]) -> Output {
    let workplace = workplace();
    plimsoll(workplace.path()).args(["train", "run.toml"]).envs(variables.iter().copied()).output().unwrap()
}

#[test]
fn a_launched_process_does_not_run_alone() {
    let output = launched(&[("OMPI_COMM_WORLD_SIZE", "4")]);
    assert_eq!(output.status.code(), Some(2));
    let message = text(&output.stderr);
    assert!(message.contains("started 4 processes"), "{message}");
    let build = "`cargo build --release --features mpi`";
    assert_eq!(
        message.contains(build) && message.contains("`./launch/mpirun -n 4`"),
        !cfg!(feature = "mpi"),
        "{message}"
    );
}

#[test]
fn a_run_writes_its_files_and_prints_memory_by_rank() {
    let workplace = workplace();
    let run = |arguments: &[&str]| {
        plimsoll(workplace.path())
            .args(["train", "run.toml", "--run-dir", "out"])
            .args(arguments)
            .output()
            .unwrap()
    };
    let output = run(&["--set", "parallel.data=2", "--ranks", "2"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let printed = text(&output.stdout);
    for expected in
        ["memory by rank", "maximum", "Every rank used what was planned", "A sample", "Validation loss"]
    {
        assert!(printed.contains(expected), "{expected} in {printed}");
    }
    assert!(text(&output.stderr).contains("step 6/6"));

    let out = workplace.path().join("out");
    let names =
        ["checkpoints", "config.toml", "logs", "metrics.jsonl", "sessions.json", "summary.json", "traces"];
    assert_eq!(entries(&out), names);
    let summary: serde_json::Value =
        serde_json::from_slice(&std::fs::read(out.join("summary.json")).unwrap()).unwrap();
    assert_eq!(summary["device"], "cpu");
    assert_eq!(summary["world_size"], 2);
    let grid = serde_json::json!({"data": 2, "pipeline": 1, "context": 1, "tensor": 1});
    assert_eq!(summary["grid"], grid);
    assert_eq!(summary["steps"], 6);
    assert_eq!(summary["losses"].as_array().unwrap().len(), 6);
    assert_eq!(summary["weights_sha256"].as_str().unwrap().len(), 64);
    for (rank, entry) in summary["ranks"].as_array().unwrap().iter().enumerate() {
        assert_eq!(entry["rank"], rank);
        for key in ["allocated_bytes", "reserved_bytes", "peak_allocated_bytes", "peak_reserved_bytes"] {
            assert!(entry[key].as_u64().unwrap() > 0, "{key}");
        }
    }

    // A second run in the directory is refused, and the first is unchanged.
    let again = run(&[]);
    assert_eq!(again.status.code(), Some(2));
    assert!(text(&again.stderr).contains("holds a run already"));
    assert!(out.join("summary.json").exists());

    // The resolved configuration gives the same run.
    let resolved =
        plimsoll(workplace.path()).args(["train", "out/config.toml", "--run-dir", "out2"]).output().unwrap();
    assert_eq!(resolved.status.code(), Some(0), "{}", text(&resolved.stderr));
    let second: serde_json::Value =
        serde_json::from_slice(&std::fs::read(workplace.path().join("out2/summary.json")).unwrap()).unwrap();
    assert_eq!(second["weights_sha256"], summary["weights_sha256"]);
    assert_eq!(second["losses"], summary["losses"]);
}

#[test]
fn no_command_trains_the_quickstart() {
    let directory = tempfile::tempdir().unwrap();
    let mut child = interruptible(common::program(), directory.path())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let seen: Vec<String> = lines.by_ref().take_while(|line| !line.starts_with("step 10/450")).collect();
    assert!(seen.iter().any(|line| line.contains("planned:")), "{seen:?}");
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    // Read to the end, because a full pipe would block the run.
    let rest: Vec<String> = lines.collect();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{rest:?}");
    let printed = text(&output.stdout);
    assert!(printed.contains("memory by rank") && printed.contains("A sample"), "{printed}");
    let run = entries(&directory.path().join("runs")).remove(0);
    assert!(run.starts_with("quickstart-"), "{run}");
}

#[test]
fn an_interrupt_ends_the_run_with_a_summary() {
    let workplace = workplace();
    let mut child = interruptible(common::program(), workplace.path())
        .args([
            "train",
            "run.toml",
            "--run-dir",
            "out",
            "--set",
            "train.steps=1000000",
            "--set",
            "parallel.data=2",
        ])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let metrics = workplace.path().join("out/metrics.jsonl");
    let lines = || std::fs::read_to_string(&metrics).map_or(0, |lines| lines.lines().count());
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(600);
    while lines() < 3 && std::time::Instant::now() < deadline {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let interrupted = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(interrupted.success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let summary = std::fs::read(workplace.path().join("out/summary.json")).unwrap();
    let summary: serde_json::Value = serde_json::from_slice(&summary).unwrap();
    assert_eq!(summary["interrupted"], true);
    let steps = summary["steps"].as_u64().unwrap();
    assert!((3..1_000_000).contains(&steps));
    assert_eq!(lines() as u64, steps);
    assert_eq!(summary["losses"].as_array().unwrap().len() as u64, steps);
}

/// Checks that a perceptron's loss, a mean square, is printed without a unit.
#[test]
fn losses_of_tokens_alone_are_in_nats() {
    let workplace = workplace();
    for (number, (kind, words)) in [("gpt", " nats"), ("mlp", "\ndid 2 steps ")].into_iter().enumerate() {
        let kind = format!("model.kind={kind}");
        std::fs::write(workplace.path().join("any.toml"), "[model]\n[data]\nkind = \"synthetic\"\n").unwrap();
        let sets = [&*kind, "train.steps=2", "train.micro_batch_size=1", "train.global_batch_size=4"];
        let sets = sets.iter().flat_map(|set| ["--set", set]);
        let run_dir = format!("out-{number}");
        let mut command = plimsoll(workplace.path());
        command.args(["train", "any.toml", "--run-dir", &run_dir, "--device", "cpu"]).args(sets);
        let output = command.output().unwrap();
        let message = text(&output.stdout);
        let rest = message.split("Validation loss ").nth(1).unwrap_or_default();
        let after = rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
        assert!(after.starts_with(words), "{kind}: {message}{}", text(&output.stderr));
    }
}

#[test]
fn a_run_on_meta_reports_that_it_computes_nothing() {
    let workplace = workplace();
    let output = plimsoll(workplace.path())
        .args(["train", "run.toml", "--run-dir", "out", "--device", "meta"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("memory is counted and nothing is computed"));
    assert!(text(&output.stdout).contains("Every rank used what was planned"));
}

#[test]
fn the_chosen_collectives_are_measured() {
    let bench = |arguments: &[&str]| {
        let always = ["bench", "collective", "--ranks", "2", "--milliseconds", "1"];
        plimsoll(Path::new(".")).args(always).args(arguments).output().unwrap()
    };
    let output = bench(&["--sizes", "1KiB,64KiB", "--only", "all-reduce,exchange", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let lines: Vec<serde_json::Value> =
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let operation_bytes =
        |line: &serde_json::Value| (line["operation"].to_string(), line["bytes"].as_u64().unwrap());
    let expected = [("all-reduce", 1024), ("all-reduce", 65536), ("exchange", 1024), ("exchange", 65536)];
    assert_eq!(
        lines.iter().map(operation_bytes).collect::<Vec<_>>(),
        expected.map(|(name, bytes)| (format!("{name:?}"), bytes))
    );
    assert!(lines.iter().all(|line| line["seconds"].as_f64().unwrap() > 0.0));
    for wrong in [["--sizes", "6"], ["--sizes", "1XB"], ["--only", "all"]] {
        assert_eq!(bench(&wrong).status.code(), Some(2), "{wrong:?}");
    }
}

#[test]
fn help_names_commands_and_arguments() {
    let output = plimsoll(Path::new(".")).arg("--help").output().unwrap();
    let help = text(&output.stdout);
    for command in ["new", "train", "plan", "sample", "replay", "bench"] {
        assert!(help.contains(command), "{help}");
    }
    let output = plimsoll(Path::new(".")).args(["train", "--help"]).output().unwrap();
    let help = text(&output.stdout);
    for argument in ["--set", "--ranks", "--device", "--run-dir", "--resume", "--no-plan"] {
        assert!(help.contains(argument), "{help}");
    }
}

#[test]
fn the_printed_plan_equals_the_run() {
    let directory = workplace();
    let figures = |ranks: &serde_json::Value| -> Vec<Vec<u64>> {
        let keys = ["allocated_bytes", "reserved_bytes", "peak_allocated_bytes", "peak_reserved_bytes"];
        let rank_bytes =
            |rank: &serde_json::Value| keys.iter().map(|key| rank[key].as_u64().unwrap()).collect();
        ranks.as_array().unwrap().iter().map(rank_bytes).collect()
    };
    for sets in
        [&["parallel.data=1"][..], &["parallel.data=2"], &["parallel.data=4", "parallel.zero_stage=1"]]
    {
        let sets = || sets.iter().flat_map(|set| ["--set", set]);
        let planned =
            plimsoll(directory.path()).args(["plan", "run.toml", "--json"]).args(sets()).output().unwrap();
        assert!(planned.status.success(), "{}", text(&planned.stderr));
        let planned: serde_json::Value = serde_json::from_slice(&planned.stdout).unwrap();
        let ran =
            plimsoll(directory.path()).args(["train", "run.toml", "--run-dir", "out"]).args(sets()).output();
        assert!(ran.unwrap().status.success());
        let summary = std::fs::read_to_string(directory.path().join("out/summary.json")).unwrap();
        let summary: serde_json::Value = serde_json::from_str(&summary).unwrap();
        assert_eq!(figures(&planned["ranks"]), figures(&summary["ranks"]));
        for key in ["device", "world_size", "grid"] {
            assert_eq!(planned[key], summary[key]);
        }
        std::fs::remove_dir_all(directory.path().join("out")).unwrap();
    }
    assert_eq!(entries(directory.path()), ["corpus.txt", "empty.txt", "run.toml"]);
}

#[test]
fn the_precision_of_every_operator_is_planned() {
    let directory = workplace();
    let plan = |sets: &[&str]| {
        let sets = sets.iter().flat_map(|set| ["--set", set]);
        let output = plimsoll(directory.path())
            .args(["plan", "run.toml", "--device", "cpu", "--precision"])
            .args(sets)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let wide = ["model.width=128", "model.heads=2"];
    let half = plan(&[&wide[..], &["precision.compute=f16", "model.dropout=0.1"]].concat());
    let line = |of: &str, name: &str| {
        let row = of.lines().find(|line| line.split_whitespace().next() == Some(name));
        row.unwrap_or_else(|| panic!("{name}: {of}")).to_owned()
    };
    assert!(half.starts_with("activations in f16, gradients of weights in f32"), "{half}");
    assert!(half.contains("with a dynamic loss scale"), "{half}");
    assert!(line(&half, "cross_entropy").contains("f32                      f32       f16"), "{half}");
    assert!(line(&half, "attention").contains("half operands, f32 sums  f16       f16"), "{half}");
    assert!(line(&half, "residual_layer_norm").ends_with("mean, rstd"), "{half}");
    let pieces = ["model.loss_pieces=2", "precision.compute=bf16", "lora.rank=2"];
    let other = plan(&[&wide[..], &pieces].concat());
    for message in [&half, &other, &plan(&["parallel.pipeline=2"])] {
        assert!(!message.contains("not in the table"), "{message}");
    }
    assert!(!plan(&[]).contains("half"));
}

#[test]
fn plans_for_a_gpu_need_no_gpu_and_refuse_runs_that_do_not_fit() {
    let directory = workplace();
    let plan = |sets: &[&str]| {
        let sets = sets.iter().flat_map(|set| ["--set", set]);
        plimsoll(directory.path()).args(["plan", "run.toml", "--device", "cuda"]).args(sets).output().unwrap()
    };
    let half = plan(&["model.width=64", "model.heads=2", "precision.compute=bf16"]);
    let message = text(&half.stdout);
    assert!(
        half.status.success() && message.contains("NVIDIA H200") && message.contains("workspace"),
        "{message}"
    );
    let large = plan(&["model.width=8192", "model.heads=64", "model.layers=200"]);
    assert_eq!(large.status.code(), Some(1));
    assert!(text(&large.stdout).contains("does not fit"), "{}", text(&large.stdout));
}
