//! Tests of `plimsoll plan`: fits and refusals, remedies, proposals, and devices that are not present.

mod address_limits;
mod predictions;
mod search;
mod shared_gpu;

use std::path::Path;
use std::process::{Command, Output};

use crate::common;
use crate::common::jobs::{text, workplace};
use serde_json::Value;

fn plimsoll(directory: &Path) -> Command {
    let mut command = Command::new(common::program());
    // These tests use the CPU even where there is a GPU.
    command.current_dir(directory).env("CUDA_VISIBLE_DEVICES", "").env_remove("PLIMSOLL_ALLOC_CONF");
    command
}

/// Runs `plimsoll plan run.toml` with overrides and further arguments.
fn planned(directory: &Path, sets: &[&str], more: &[&str]) -> Output {
    let sets = sets.iter().flat_map(|set| ["--set", set]);
    plimsoll(directory).args(["plan", "run.toml"]).args(sets).args(more).output().unwrap()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output.stderr)))
}

#[test]
fn a_plan_reports_whether_it_fits_and_what_would() {
    let directory = workplace();
    let large =
        ["model.width=256", "model.context=64", "train.micro_batch_size=8", "train.global_batch_size=32"];
    let fits = planned(directory.path(), &large, &["--json"]);
    let needs = json(&fits)["fit"]["needs_bytes"].as_u64().unwrap();
    let reserved = json(&fits)["ranks"][0]["peak_reserved_bytes"].as_u64().unwrap();
    // Reserved pages that no block uses take no host memory.
    let held = needs - json(&fits)["fit"]["host"]["bytes"].as_u64().unwrap();
    assert!(held <= reserved && held > reserved / 2, "{held} held, {reserved} reserved");
    let capacity = format!("{}", needs - 1);
    let short = planned(directory.path(), &large, &["--json", "--capacity", &capacity]);
    assert_eq!((fits.status.code(), short.status.code()), (Some(0), Some(1)));
    let fit = &json(&short)["fit"];
    assert_eq!((&fit["fits"], &fit["needs_bytes"]), (&false.into(), &needs.into()));
    assert_eq!(fit["capacity_bytes"].as_u64(), Some(needs - 1));
    // The advice is one sentence, and the advised configuration fits in exactly the stated bytes.
    let refused = planned(directory.path(), &large, &["--capacity", &capacity]);
    // The result is the last line of the text, and is printed once.
    let table = text(&refused.stdout);
    let printed = text(&refused.stderr);
    assert!(printed.is_empty(), "{printed}");
    let printed = table.trim_end().lines().last().unwrap_or_default();
    assert!(printed.starts_with("does not fit: rank 0 needs"), "{table}");
    let advice: Vec<&str> =
        printed.split("--set ").skip(1).map(|set| set.split([' ', ';']).next().unwrap()).collect();
    assert_eq!(advice, ["train.micro_batch_size=4"], "{printed}");
    let advised =
        planned(directory.path(), &[&large[..], &advice].concat(), &["--json", "--capacity", &capacity]);
    assert_eq!(advised.status.code(), Some(0));
    let bytes = json(&advised)["fit"]["needs_bytes"].as_u64().unwrap();
    assert!(printed.contains(&telemetry::units::grouped(bytes)), "{printed}");
    // Under a limit, `train` refuses the run too.
    let limit = format!("memory.limit_bytes={}", reserved - 1);
    let train = |more: &[&str]| {
        let sets = [&large[..], &[limit.as_str()]].concat();
        let sets = sets.iter().flat_map(|set| ["--set", set]);
        plimsoll(directory.path())
            .args(["train", "run.toml", "--run-dir", "out"])
            .args(sets)
            .args(more)
            .output()
            .unwrap()
    };
    let printed = text(&train(&[]).stderr);
    assert!(
        printed.contains("memory.limit_bytes allows ") && printed.contains("--set train.micro_batch_size=4"),
        "{printed}"
    );
    assert!(!directory.path().join("out").exists());
    // Without a plan, the run starts and runs out of memory.
    let output = train(&["--no-plan"]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("out of memory"), "{}", text(&output.stderr));
    let output = planned(directory.path(), &large, &["--capacity", "80 gigs"]);
    assert!(output.status.code() == Some(2) && text(&output.stderr).contains("--capacity 80 gigs"));
}

#[test]
fn the_option_no_plan_prints_no_plan() {
    let directory = workplace();
    let output = plimsoll(directory.path()).args(["train", "run.toml", "--no-plan"]).output().unwrap();
    let printed = text(&output.stdout) + &text(&output.stderr);
    assert!(output.status.success() && !printed.contains("planned"), "{printed}");
}

#[test]
fn a_device_is_described_once_and_imitated_elsewhere() {
    let directory = workplace();
    let describe = |file: &str| {
        plimsoll(directory.path()).args(["plan", "--device", "cpu", "--describe", file]).output().unwrap()
    };
    assert_eq!(describe("here.toml").status.code(), Some(0));
    let here = planned(directory.path(), &[], &["--json", "--device", "cpu"]);
    let there = planned(directory.path(), &[], &["--json", "--device", "here.toml"]);
    assert_eq!(json(&here), json(&there));
    // Only --quick times the calls of a configuration, on a GPU.
    let options = ["--device", "cpu", "--describe", "run-here.toml", "--quick"];
    for (count, reason) in [(4, "add --quick"), (5, "there is no GPU")] {
        let refused = planned(directory.path(), &[], &options[..count]);
        assert!(refused.status.code() == Some(2) && text(&refused.stderr).contains(reason), "{refused:?}");
        assert!(!directory.path().join("run-here.toml").exists());
    }
    // An existing file is unchanged, because it may be a configuration.
    assert_eq!(describe("run.toml").status.code(), Some(2));
    assert!(planned(directory.path(), &[], &[]).status.success());
    std::fs::write(directory.path().join("wrong.toml"), "kind = \"cuda\"\n").unwrap();
    let refused = planned(directory.path(), &[], &["--device", "wrong.toml"]);
    let printed = text(&refused.stderr);
    assert!(refused.status.code() == Some(2) && printed.contains("wrong.toml:1: missing field"), "{printed}");
}

#[test]
fn a_file_that_cannot_be_written_leaves_nothing() {
    let directory = workplace();
    let arguments = ["plan", "--device", "cpu", "--describe", "here.toml"];
    let mut limited = Command::new("sh");
    // With a file size limit of 0 and SIGXFSZ ignored, writing fails with an error.
    limited
        .args(["-c", "trap '' XFSZ; ulimit -f 0; exec \"$@\"", "sh"])
        .arg(common::program())
        .args(arguments);
    let output = limited.current_dir(directory.path()).env("CUDA_VISIBLE_DEVICES", "").output().unwrap();
    let printed = text(&output.stderr);
    assert_eq!((output.status.code(), printed.lines().count()), (Some(1), 1), "{printed}");
    assert!(printed.contains("here.toml: File too large"), "{printed}");
    assert!(!directory.path().join("here.toml").exists());
    assert!(plimsoll(directory.path()).args(arguments).output().unwrap().status.success());
}

#[test]
fn a_thousand_ranks_are_planned_by_role() {
    let directory = workplace();
    let sets = ["parallel.data=1024", "parallel.lanes=1024", "train.global_batch_size=2048"];
    for more in ["parallel.zero_stage=0", "parallel.zero_stage=1"] {
        let sets = [&sets[..], &["train.validation_micro_batches=3", more]].concat();
        let output = planned(directory.path(), &sets, &["--json", "--device", "cuda"]);
        let plan = json(&output);
        assert_eq!(plan["ranks"].as_array().unwrap().len(), 1024);
        assert_eq!(plan["world_size"], 1024);
        let roles = plan["roles"].as_array().unwrap();
        // At least two roles: ranks that validate and ranks that do not.
        assert!((2..24).contains(&roles.len()), "{}", roles.len());
        if more == "parallel.zero_stage=0" {
            assert_eq!(roles[0]["ranks"], "0-2");
        }
        for (rank, entry) in plan["ranks"].as_array().unwrap().iter().enumerate() {
            assert_eq!(entry["rank"], rank);
            assert!(entry["step_bytes_sent"].as_u64().unwrap() > 0);
        }
    }
}

/// Returns the settings of a step of four micro-batches with `size` sequences each.
fn micro_batches_of(size: usize) -> Vec<String> {
    vec![format!("train.micro_batch_size={size}"), format!("train.global_batch_size={}", 4 * size)]
}

#[test]
fn the_largest_value_that_fits_is_found_and_the_next_does_not_fit() {
    let directory = workplace();
    for (name, sets, unit) in [
        ("micro_batch_size", micro_batches_of, 1),
        ("layers", |value| vec![format!("model.layers={value}")], 1),
        ("width", |value| vec![format!("model.width={value}"), format!("model.heads={}", value / 16)], 16),
        ("context", |value| vec![format!("model.context={value}")], 1),
    ] as [(&str, fn(usize) -> Vec<String>, usize); 4]
    {
        let capacity = ["--capacity", "60MiB", "--device", "cuda"];
        let capacity = ["--capacity", capacity[1], "--device", search::small_device(directory.path())];
        let output = planned(directory.path(), &[], &[&["--largest", name], &capacity[..]].concat());
        let printed = text(&output.stdout);
        let tries = text(&output.stderr);
        assert!(output.status.success(), "{tries}");
        let number = printed.split(" is ").nth(1).unwrap().split(' ').next().unwrap();
        let value: usize = number.parse().unwrap();
        assert!(tries.contains(&format!("{name} {value}: fits, with ")), "{tries}");
        let fits = |value: usize| {
            let sets = sets(value);
            let sets: Vec<&str> = sets.iter().map(String::as_str).collect();
            planned(directory.path(), &sets, &capacity).status.success()
        };
        assert!(fits(value) && !fits(value + unit), "{printed}");
        assert!(printed.contains(&format!("the next one, {}, ", value + unit)), "{printed}");
        // The number of larger micro-batches stays the same, which makes a larger step.
        assert_eq!(printed.contains(" sequences a step instead of 8, "), name == "micro_batch_size");
    }
    let output = planned(directory.path(), &[], &["--largest", "heads"]);
    assert!(output.status.code() == Some(2) && text(&output.stderr).contains("--largest heads"));
}

#[test]
fn proposals_fit_in_their_stated_bytes() {
    let directory = workplace();
    let large = [
        "model.width=256",
        "model.heads=4",
        "model.context=64",
        "train.micro_batch_size=8",
        "train.global_batch_size=32",
    ];
    let output =
        planned(directory.path(), &large, &["--fit", "4GiB", "--ranks", "2", "--device", "cuda", "--json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let proposals = json(&output);
    let list = proposals["proposals"].as_array().unwrap();
    assert!(list.len() > 2, "{proposals}");
    let seconds: Vec<f64> = list.iter().map(|p| p["step_seconds"].as_f64().unwrap()).collect();
    assert!(seconds.windows(2).all(|pair| pair[0] <= pair[1]), "{seconds:?}");
    for proposal in list {
        let samples = ["micro_batch_size", "micro_batches"].map(|key| proposal[key].as_u64().unwrap());
        assert_eq!(samples[0] * samples[1], 32);
        let sets: Vec<&str> =
            proposal["set"].as_array().unwrap().iter().map(|set| set.as_str().unwrap()).collect();
        let plan = planned(
            directory.path(),
            &[&large[..], &sets].concat(),
            &["--json", "--device", "cuda", "--capacity", "4GiB"],
        );
        let plan = json(&plan);
        assert_eq!((&plan["fit"]["fits"], &plan["world_size"]), (&true.into(), &2.into()));
        assert_eq!(plan["fit"]["needs_bytes"], proposal["peak_reserved_bytes"]);
        // A plan and a proposal predict the same time.
        let predicted = plan["predicted_step_seconds"].as_f64().unwrap();
        assert!((predicted / proposal["step_seconds"].as_f64().unwrap() - 1.0).abs() < 1e-9, "{proposal}");
    }
    // No proposal fits in less than the device's own overhead.
    let output = planned(directory.path(), &large, &["--fit", "512MiB", "--device", "cuda"]);
    assert!(output.status.code() == Some(2) && text(&output.stderr).contains("before it allocates"));
    // With three ranks, numbers of lanes are uneven; two layers cannot form three stages.
    let three = ["--fit", "4GiB", "--ranks", "3", "--device", "cuda", "--json"];
    let proposals = json(&planned(directory.path(), &large, &three));
    let list = proposals["proposals"].as_array().unwrap();
    assert!(!list.is_empty() && list.iter().all(|proposal| proposal["grid"]["data"] == 3), "{proposals}");
    let output = planned(directory.path(), &large, &["--fit", "4GiB", "--ranks", "37", "--device", "cuda"]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stdout));
}

/// Runs a command with limits on bytes of data and on processor seconds.
fn bounded(directory: &Path, kibibytes: u64, arguments: &[&str]) -> Output {
    let mut command = Command::new("bash");
    command
        .args(["-c", &format!("ulimit -d {kibibytes}; exec \"$@\""), "sh"])
        .arg(common::program())
        .args(arguments);
    command.current_dir(directory).env("CUDA_VISIBLE_DEVICES", "").output().unwrap()
}

/// Checks that the largest accepted counts are planned in 500 MB with few allocations, or refused with a
/// reason.
#[test]
fn the_cost_of_a_plan_depends_on_its_distinct_work() {
    const SMALL: &str = "train.micro_batch_size=1";
    let table: &[(&[&str], Option<&str>)] = &[
        (&["train.steps=1099511627776"], None),
        (&["train.steps=1099511627776", "train.validate_every=7"], None),
        (&[SMALL, "train.global_batch_size=131072"], None),
        (&[SMALL, "train.global_batch_size=131072", "parallel.lanes=131072"], None),
        (&["train.micro_batch_size=16777216", "train.global_batch_size=16777216", "parallel.lanes=1"], None),
        (&["model.layers=64", "memory.recompute=auto", "memory.limit_bytes=90000000"], None),
        (
            &[
                "model.layers=64",
                "parallel.pipeline=4",
                "memory.recompute=auto",
                "memory.limit_bytes=90000000",
            ],
            None,
        ),
        (&["model.layers=64", "parallel.pipeline=64", SMALL, "train.global_batch_size=512"], None),
        (
            &["model.layers=1000", "parallel.pipeline=64", SMALL, "train.global_batch_size=1024"],
            Some("do not within 4,194,304 allocations"),
        ),
        (
            &["model.layers=1000", "parallel.pipeline=1000", SMALL, "train.global_batch_size=4096"],
            Some("use fewer, larger micro-batches"),
        ),
        (
            &["model.layers=64", "parallel.pipeline=64", SMALL, "train.global_batch_size=65536"],
            Some("use fewer, larger micro-batches"),
        ),
    ];
    let directory = workplace();
    for (sets, refused) in table {
        let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
        let arguments = [&["plan", "run.toml", "--device", "cuda", "--json"][..], &sets].concat();
        let output = bounded(directory.path(), 500_000, &arguments);
        let printed = text(&output.stderr);
        match refused {
            Some(reason) => {
                assert!(output.status.code() == Some(2) && printed.contains(reason), "{printed}")
            }
            // Configurations that do not fit are planned in full, then refused.
            None => {
                let plan = json(&output);
                assert!(plan["ranks"].is_array(), "{sets:?}: {printed}");
                let of_role = |role: &Value| role["rehearsed_allocations"].as_u64().unwrap();
                let allocations: u64 = plan["roles"].as_array().unwrap().iter().map(of_role).sum();
                assert!((1..5_000_000).contains(&allocations), "{sets:?}: {allocations}");
            }
        }
    }
}

/// Checks that the planned host memory is within 5 % of the measured peak.
#[test]
fn the_planned_host_memory_matches_a_run() {
    const WIDE: [&str; 3] =
        ["model.kind=mlp", "model.sizes=[64, 2048, 2048, 64]", "parallel.bucket_bytes=1048576"];
    const DEEP: [&str; 5] =
        ["model.kind=gpt", "model.layers=12", "model.width=128", "model.heads=4", "model.context=64"];
    const ALL: [&str; 5] = [
        "data.kind=synthetic",
        "train.steps=3",
        "train.micro_batch_size=4",
        "train.global_batch_size=16",
        "optim.warmup_steps=1",
    ];
    let directory = workplace();
    std::fs::write(directory.path().join("host.toml"), "[model]\n").unwrap();
    let without = &["checkpoint.minutes=0"][..];
    let two = &["parallel.data=2"][..];
    let zero = &["parallel.zero_stage=1"][..];
    let pipeline = &["parallel.pipeline=2"][..];
    let table: &[&[&[&str]]] = &[
        &[&WIDE, without],
        &[&WIDE],
        &[&WIDE, two, without],
        &[&WIDE, two, zero],
        &[&WIDE, &["parallel.data=4"]],
        &[&DEEP, without],
        &[&DEEP],
        &[&DEEP, two],
        &[&DEEP, two, zero],
        &[&DEEP, pipeline],
        &[&DEEP, two, pipeline],
    ];
    for (number, parts) in table.iter().enumerate() {
        let run = format!("host-{number}");
        let sets: Vec<&str> = ALL.iter().chain(parts.iter().copied().flatten()).copied().collect();
        let arguments = |more: &[&'static str]| {
            let sets = sets.iter().flat_map(|set| ["--set", set]);
            ["host.toml"]
                .into_iter()
                .chain(sets)
                .chain(["--device", "cpu"])
                .chain(more.iter().copied())
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        let plan = plimsoll(directory.path()).arg("plan").args(arguments(&["--json"])).output().unwrap();
        let planned = json(&plan)["fit"]["needs_bytes"].as_u64().unwrap();
        let ran = plimsoll(directory.path())
            .arg("train")
            .args(arguments(&[]))
            .args(["--run-dir", &run])
            .output()
            .unwrap();
        assert!(ran.status.success(), "{}", text(&ran.stderr));
        let summary = std::fs::read(directory.path().join(run).join("summary.json")).unwrap();
        let summary: Value = serde_json::from_slice(&summary).unwrap();
        let measured = summary["host_peak_bytes"].as_u64().unwrap();
        let off = planned as f64 / measured as f64 - 1.0;
        assert!(
            off.abs() < 0.05,
            "{:.1} % off: {planned} planned, {measured} measured, {sets:?}",
            100.0 * off
        );
    }
}

#[test]
fn layers_that_cannot_multiply_in_fp8_are_refused() {
    let directory = workplace();
    std::fs::write(directory.path().join("fp8.toml"), "[model]\n").unwrap();
    let table: [(&[&str], &str); 6] = [
        (&["model.kind=resnet"], "no linear layer but the first or its head"),
        (
            &["model.kind=mlp", "model.sizes=[64,300,300,8]"],
            "precision.fp8_layers: linear layer 1 has 300 inputs and 300 outputs",
        ),
        (&["precision.fp8_layers=['*.mpl.*']"], "\"*.mpl.*\" matches no linear layer, such as "),
        (&["lora.rank=4"], "adapters"),
        (
            &["model.loss_pieces=2", "model.tied=false", "precision.fp8_layers=['lm_head']"],
            "model.loss_pieces = 2 computes scores in the compute type",
        ),
        (
            &["model.kind=llama", "precision.fp8_layers=['*.gate_up_proj']"],
            "model.layers.0.mlp.gate_up_proj is in FP8 only together with model.layers.0.mlp.down_proj",
        ),
    ];
    for (sets, sentence) in table {
        let sets =
            ["data.kind=synthetic", "precision.matmul=fp8"].iter().chain(sets).flat_map(|set| ["--set", set]);
        let arguments = ["fp8.toml", "--device", "cpu"].into_iter().chain(sets);
        let output = plimsoll(directory.path()).arg("plan").args(arguments).output().unwrap();
        let printed = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{sentence}: {printed}");
        assert!(printed.contains(sentence), "{printed}");
    }
}

/// Checks the number of steps of epochs, with and without packed conversations, in the plan, its page,
/// searches and the schedule.
#[test]
fn a_plan_counts_the_steps_of_epochs() {
    let directory = workplace();
    let recipe = common::root().join("launch/recipes/chat");
    let files = [
        format!("data.paths=['{}']", recipe.join("conversations.jsonl").display()),
        format!("data.chat_template={}", recipe.join("template.jinja").display()),
    ];
    let chat = ["data.kind=chat", &files[0], &files[1], "train.epochs=0.5", "model.context=256"];
    let mut steps = Vec::new();
    for pack in ["data.pack_documents=false", "data.pack_documents=true"] {
        let sets = [&chat[..], &[pack]].concat();
        let plan = json(&planned(directory.path(), &sets, &["--json", "--device", "cpu"]));
        let run = directory.path().join(pack);
        let sets = sets.iter().flat_map(|set| ["--set", set]);
        let mut train = plimsoll(directory.path());
        let output = train.args(["train", "run.toml", "--run-dir"]).arg(&run).args(sets).output().unwrap();
        let metrics = std::fs::read_to_string(run.join("metrics.jsonl"));
        let metrics = metrics.unwrap_or_else(|_| panic!("{}", text(&output.stderr)));
        assert_eq!(plan["steps"], metrics.lines().count(), "{pack}");
        assert_eq!(plan["epochs"]["steps"], plan["steps"]);
        steps.push(plan["steps"].as_u64().unwrap());
    }
    assert!(steps[1] < steps[0], "packed sequences are fewer: {steps:?}");
    let printed = text(&planned(directory.path(), &chat, &["--device", "cpu"]).stdout);
    assert!(
        printed.contains("0.5 epochs of ") && printed.contains(&format!("{} steps", steps[1])),
        "{printed}"
    );
    let alone = json(&planned(directory.path(), &[], &["--json", "--device", "cpu"]));
    assert!(alone.get("epochs").is_none() && alone["steps"].is_u64(), "{alone}");
}
