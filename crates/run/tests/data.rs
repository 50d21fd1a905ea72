//! Training on token shards, tokenized text and mixtures: equal bits on every grid, plans that equal runs,
//! the best checkpoint and early stopping.

use std::fs;
use std::path::{Path, PathBuf};

use config::RunConfig;
use data::{Corpus, Tokenizer};
use inference::{EvaluateOptions, Evaluation};
use run::{Interrupt, RunOptions, Startup, TrainReport};
use tempfile::TempDir;
use tokenize::{HeldOut, Job, tokenize};
use worker::DeviceChoice;
use worker::dataset::DataScope;

const MODEL: &str = r#"
[model]
kind = "gpt"
layers = 2
heads = 2
width = 32
context = 32
[train]
steps = 6
micro_batch_size = 2
global_batch_size = 8
validation_micro_batches = 3
validate_every = 2
[optim]
warmup_steps = 2
[parallel]
lanes = 4
[data]
"#;
const TOKENS: &str = r#"kind = "tokens"
paths = ["tokens/train_*.bin"]
validation_paths = ["tokens/val_*.bin"]
tokenizer = "tokenizer.json"
"#;
const SEQUENTIAL: &str = r#"kind = "tokens"
paths = ["tokens/*.bin"]
tokenizer = "tokenizer.json"
order = "sequential"
"#;
const TEXT: &str = r#"kind = "text"
paths = ["a.txt", "b.txt"]
tokenizer = "tokenizer.json"
"#;
const MIXTURE: &str = r#"kind = "text"
[[data.mixture]]
paths = ["a.txt"]
weight = 3
[[data.mixture]]
paths = ["b.txt"]
"#;

const PACKED: &str = r#"kind = "tokens"
paths = ["tokens/*.bin"]
tokenizer = "tokenizer.json"
pack_documents = true
document_mask = true
"#;

/// Creates a directory with two texts, a tokenizer trained on them, and token shards.
fn workplace() -> TempDir {
    let directory = TempDir::new().unwrap();
    let at = |name: &str| directory.path().join(name);
    let line = "The load line of a ship says how much she may carry, and in which waters.\n";
    fs::write(at("a.txt"), line.repeat(300)).unwrap();
    fs::write(at("b.txt"), include_str!("data.rs").repeat(2)).unwrap();
    let files = vec![at("a.txt"), at("b.txt")];
    tokenize::train_tokenizer(files.clone(), 300, "text", &at("tokenizer.json")).unwrap();
    let tokenizer = Tokenizer::from_name(at("tokenizer.json").to_str().unwrap()).unwrap();
    let job = Job::new(files, tokenizer, at("tokens")).unwrap();
    let document_end = Some("\n".to_owned());
    tokenize(&Job { shard_tokens: 3000, document_end, held_out: HeldOut::Shard, ..job }).unwrap();
    directory
}

fn config(index: &Path, data: &str, overrides: &[&str]) -> RunConfig {
    let overrides: Vec<String> = overrides.iter().map(ToString::to_string).collect();
    RunConfig::parse(&format!("{MODEL}{data}"), "test.toml", index, &overrides).unwrap()
}

fn train_in(run_dir: PathBuf, config: RunConfig, resume: bool) -> TrainReport {
    let device = DeviceChoice::Cpu;
    let run_dir = Some(run_dir);
    let options = RunOptions { device, run_dir, resume, quiet: true, ..RunOptions::default() };
    let report = run::train(config, options).unwrap();
    assert!(report.divergences.is_empty() && report.outlived.is_empty(), "{report}");
    report
}

fn bits(report: &TrainReport) -> (String, Vec<u32>, u64) {
    let losses = report.summary.losses.iter().map(|loss| loss.to_bits()).collect();
    (report.summary.weights_sha256.clone(), losses, report.validation_loss.unwrap().to_bits())
}

#[test]
fn every_kind_of_data_gives_equal_bits_on_every_grid_and_after_a_resume() {
    let index = workplace();
    let table = [
        ("tokens", TOKENS),
        ("sequential", SEQUENTIAL),
        ("text", TEXT),
        ("mixture", MIXTURE),
        ("packed", PACKED),
    ];
    for (name, data) in table {
        let run_dir = |more: &str| index.path().join(format!("runs/{name}{more}"));
        let one = train_in(run_dir("1"), config(index.path(), data, &["checkpoint.every=3"]), false);
        assert_eq!(one.unplanned, Some(vec![]), "{name}");
        assert!(one.bytes_per_token.is_some(), "{name}");
        for grid in [["parallel.data=2"], ["parallel.data=4"], ["parallel.pipeline=2"]] {
            let other = train_in(run_dir(grid[0]), config(index.path(), data, &grid), false);
            assert_eq!((bits(&other), other.unplanned), (bits(&one), Some(vec![])), "{name} {grid:?}");
        }
        // The directory now looks as if the run had been killed after step 3.
        fs::remove_dir_all(run_dir("1/checkpoints/step-000006")).unwrap();
        let resumed = train_in(run_dir("1"), config(index.path(), data, &["parallel.data=2"]), true);
        assert_eq!(bits(&resumed), bits(&one), "{name}");
    }
    // The text was tokenized once, and runs keep their tokenizer.
    assert_eq!(fs::read_dir(index.path().join("runs/.tokens")).unwrap().count(), 1);
    let tokenizer = fs::read(index.path().join("runs/text1/tokenizer.json")).unwrap();
    assert!(tokenizer == fs::read(index.path().join("tokenizer.json")).unwrap());
    let written = fs::read_to_string(index.path().join("runs/text1/config.toml")).unwrap();
    assert!(written.contains("tokenizer = \"tokenizer.json\""), "{written}");
    // The vocabulary follows the tokenizer: 300 tokens, rounded up.
    assert!(written.contains("vocabulary = 384"), "{written}");
}

#[test]
fn the_checkpoint_with_the_lowest_validation_loss_is_kept_as_the_best() {
    let index = workplace();
    let sets = ["checkpoint.keep_best=true", "train.steps=12", "optim.learning_rate=0.05"];
    let run_dir = index.path().join("run");
    train_in(run_dir.clone(), config(index.path(), TOKENS, &sets), false);
    let metrics = fs::read_to_string(run_dir.join("metrics.jsonl")).unwrap();
    let json = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
    let losses = metrics.lines().filter_map(|line| json(line)["validation_loss"].as_f64());
    let lowest = losses.fold(f64::INFINITY, f64::min);
    let best = run_dir.join("checkpoints/best");
    let manifest = json(&fs::read_to_string(best.join("manifest.json")).unwrap());
    assert_eq!(manifest["validation_loss"].as_f64(), Some(lowest));
    assert_eq!(manifest["best_validation_loss"].as_f64(), Some(lowest));
    // `best` is a link to the checkpoint of a step.
    assert!(fs::read_link(&best).unwrap().to_str().unwrap().starts_with("step-"));
}

/// The best checkpoint is kept in addition to the latest ones only if it is not among them.
#[test]
fn as_many_checkpoints_as_configured_are_kept_and_the_best() {
    let index = workplace();
    let sets =
        ["checkpoint.keep_best=true", "checkpoint.keep=2", "checkpoint.every=1", "checkpoint.wait=true"];
    // A loss that never falls after the first validation, and one that falls to the end.
    for (rate, expected) in [("1e-30", &[2, 5, 6][..]), ("1e-3", &[5, 6])] {
        let run_dir = index.path().join(rate);
        let rate = format!("optim.learning_rate={rate}");
        train_in(run_dir.clone(), config(index.path(), TOKENS, &[&sets[..], &[&rate]].concat()), false);
        let steps: Vec<u64> = checkpoint::list(&run_dir).unwrap().into_iter().map(|(step, _)| step).collect();
        assert_eq!(steps, expected, "{rate}");
    }
}

#[test]
fn a_run_ends_when_the_validation_loss_no_longer_falls() {
    let index = workplace();
    let sets = ["train.patience=2", "optim.learning_rate=1e-30", "checkpoint.every=100", "train.steps=40"];
    let run_dir = index.path().join("run");
    let report = train_in(run_dir.clone(), config(index.path(), TOKENS, &sets), false);
    // The first validation, after step 2, is the lowest; the second and third are not lower.
    assert_eq!(report.summary.steps, 6);
    assert!(run_dir.join("checkpoints/step-000006").exists());
}

/// `train.epochs` and the size of the data decide the number of steps, on every grid, and a resumed run may
/// have more epochs.
#[test]
fn epochs_decide_the_steps() {
    let index = workplace();
    for (name, data) in [("tokens", TOKENS), ("text", TEXT), ("mixture", MIXTURE), ("packed", PACKED)] {
        let cache = format!("data.cache={}", index.path().join("cache").display());
        let cache = if name == "text" { &cache } else { "train.seed=1" };
        let epoch = config(index.path(), data, &["train.epochs=0.25", "parallel.data=2", cache]);
        let dataset = worker::dataset::open(&epoch, DataScope::All).unwrap();
        let sequences = dataset.tokens.as_ref().unwrap().windows();
        let report = train_in(index.path().join(format!("{name}-epochs")), epoch, false);
        assert_eq!(report.summary.steps, sequences.div_ceil(4).div_ceil(8), "{name}");
        let steps = format!("train.steps={}", report.summary.steps);
        let counted = train_in(
            index.path().join(format!("{name}-steps")),
            config(index.path(), data, &[&steps]),
            false,
        );
        assert_eq!(bits(&counted), bits(&report), "{name}");
    }
    let run_dir = index.path().join("tokens-epochs");
    let with = |set: &str| config(index.path(), TOKENS, &[set]);
    let before = train_in(run_dir.clone(), with("train.epochs=0.25"), true).summary.steps;
    let more = train_in(run_dir.clone(), with("train.epochs=0.5"), true);
    assert!(more.summary.steps > before && more.summary.steps <= 2 * before, "{more}");
    let written = fs::read_to_string(run_dir.join("config.toml")).unwrap();
    assert!(written.contains(&format!("steps = {}\nepochs = 0.5\n", more.summary.steps)), "{written}");
    let options = RunOptions { run_dir: Some(run_dir), resume: true, quiet: true, ..RunOptions::default() };
    let refused = run::train(with("train.epochs=0.1"), options).unwrap_err();
    assert!(refused.to_string().contains("has done") && refused.exit_status() == 2, "{refused}");
}

/// A run resumed from before its learning-rate decay computes the same bits as a longer run.
#[test]
fn a_run_goes_on_from_before_its_decay() {
    let index = workplace();
    let sets = |steps: &'static str| {
        ["optim.schedule=wsd", "optim.decay_steps=3", "checkpoint.every=3", "checkpoint.keep=9", steps]
    };
    let long =
        train_in(index.path().join("long"), config(index.path(), TOKENS, &sets("train.steps=12")), false);
    let run_dir = index.path().join("short");
    let short = train_in(run_dir.clone(), config(index.path(), TOKENS, &sets("train.steps=6")), false);
    assert_eq!(short.summary.losses[..4], long.summary.losses[..4]);
    assert_ne!(short.summary.weights_sha256, long.summary.weights_sha256);
    let options = RunOptions {
        run_dir: Some(run_dir),
        resume: true,
        step: Some(3),
        quiet: true,
        ..RunOptions::default()
    };
    let resumed = run::train(config(index.path(), TOKENS, &sets("train.steps=12")), options).unwrap();
    assert_eq!(bits(&resumed), bits(&long));
}

/// The report of a run stopped between validations names the step of the last validation, also if a resumed
/// run adds no step.
#[test]
fn a_validation_loss_of_an_earlier_step_is_reported_with_it() {
    let index = workplace();
    let run_dir = index.path().join("run");
    let until = |steps: Option<u64>, resume: bool| {
        let interrupt = steps.map_or_else(Interrupt::default, Interrupt::after);
        let device = DeviceChoice::Cpu;
        let run_dir = Some(run_dir.clone());
        let options = RunOptions { device, run_dir, resume, interrupt, quiet: true, ..RunOptions::default() };
        run::train(config(index.path(), TOKENS, &[]), options).unwrap()
    };
    for (steps, resume, step, words) in [
        (Some(3), false, 2, "\nValidation loss after step 2: "),
        (Some(0), true, 2, "\nValidation loss after step 2: "),
        (Some(1), true, 4, "\nValidation loss "),
        (None, true, 6, "\nValidation loss "),
    ] {
        let report = until(steps, resume);
        let text = report.to_string();
        assert!(report.validation_step == Some(step) && text.contains(words), "{text}");
        assert_eq!(report.summary.more["validation_step"], step);
        assert_eq!(text.contains("after step"), words.contains("after step"), "{text}");
        let page = run::report_run(&run_dir, &[]).unwrap().to_html();
        assert_eq!(page.contains(" after step 2"), words.contains("after step"));
    }
}

fn evaluated(model: &Path, sets: &[String]) -> Evaluation {
    let device = DeviceChoice::Cpu;
    let options =
        EvaluateOptions { model: model.to_owned(), sets: sets.to_vec(), device, ..Default::default() };
    inference::evaluate(Startup::alone(), &options).unwrap().unwrap()
}

/// Evaluation includes every held-out token exactly once, whatever the mixture weights of training.
#[test]
fn a_run_on_a_mixture_is_evaluated_on_all_that_its_sources_held_out() {
    let index = workplace();
    let run_dir = index.path().join("run");
    train_in(run_dir.clone(), config(index.path(), MIXTURE, &["checkpoint.every=6"]), false);
    let all = evaluated(&run_dir, &[]);
    let each = ["a.txt", "b.txt"].map(|text| {
        let set = format!("data.mixture=[{{paths=['{}']}}]", index.path().join(text).display());
        let evaluation = evaluated(&run_dir, &[set]);
        let held_out = fs::metadata(index.path().join(text)).unwrap().len() as f64 * 0.05;
        assert_eq!(evaluation.tokens, held_out as u64 - 1, "{text}");
        evaluation
    });
    assert_eq!(all.tokens, each[0].tokens + each[1].tokens);
    let sum: f64 = each.iter().map(|evaluation| evaluation.loss * evaluation.tokens as f64).sum();
    assert!((all.loss - sum / all.tokens as f64).abs() < 1e-5, "{all} {each:?}");
}

/// Evaluation ignores padding and includes every token of a packed document.
#[test]
fn a_run_on_packed_documents_is_evaluated_on_every_token_of_them() {
    let index = workplace();
    let run_dir = index.path().join("run");
    let report = train_in(run_dir.clone(), config(index.path(), PACKED, &["checkpoint.every=6"]), false);
    let corpus = Corpus::open_shards(index.path(), &["tokens/*.bin".to_owned()]).unwrap();
    let evaluation = evaluated(&run_dir, &[]);
    assert_eq!(evaluation.tokens, (corpus.len() as f64 * 0.05) as u64);
    assert!((evaluation.loss - report.validation_loss.unwrap()).abs() < 0.5, "{evaluation} {report}");
}

/// Every step reports its loss in nats per byte if tokens have several bytes.
#[test]
fn training_losses_are_a_token_and_a_byte() {
    let index = workplace();
    let run_dir = index.path().join("run");
    let report = train_in(run_dir.clone(), config(index.path(), TEXT, &[]), false);
    let bytes = report.training_bytes_per_token.unwrap();
    assert!(bytes > 1.5 && report.to_string().contains(" a byte; weights"), "{bytes} {report}");
    let metrics = fs::read_to_string(run_dir.join("metrics.jsonl")).unwrap();
    for line in metrics.lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        let token = line["loss"].as_f64().unwrap();
        let byte = line["loss_per_byte"].as_f64().unwrap();
        assert!((token / bytes - byte).abs() < 1e-6, "{line}");
    }
    // A byte of text is a token of it.
    let of_bytes = train_in(index.path().join("bytes"), config(index.path(), MIXTURE, &[]), false);
    assert_eq!(of_bytes.training_bytes_per_token, Some(1.0));
    let metrics = fs::read_to_string(index.path().join("bytes/metrics.jsonl")).unwrap();
    assert!(!metrics.contains("loss_per_byte"));
}

/// Each recipe states its result with a source, and trains on any text.
#[test]
fn recipes_say_what_they_reach_and_train() {
    let index = workplace();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../launch/recipes");
    let recipes = data::files(&root, &["gpt2-*.toml".to_owned(), "shakespeare-*.toml".to_owned()]).unwrap();
    assert_eq!(recipes.len(), 3);
    for recipe in recipes {
        let name = recipe.display().to_string();
        let text = fs::read_to_string(&recipe).unwrap();
        for part in ["# Reaches: ", "# Source: ", "# Data, once: ", "# Run: plimsoll train "] {
            assert!(text.contains(part), "{name} has no {part}");
        }
        let (data, kind) = match text.contains("kind = \"tokens\"") {
            true => ("tokens/train_*.bin", ["data.validation_paths=['tokens/val_*.bin']"]),
            false => ("b.txt", ["data.validation_fraction=0.1"]),
        };
        // A narrow model, in the type that any device has.
        let more =
            ["model.width=48", "train.steps=2", "train.validation_micro_batches=1", "precision.compute=f32"];
        let small = ["train.micro_batch_size=2", "train.global_batch_size=4", "model.context=64"];
        let data = format!("data.paths=['{data}']");
        let base = format!("data.base={}", index.path().display());
        let sets = [&[data.as_str(), &base][..], &kind, &more, &small].concat();
        let sets: Vec<String> = sets.into_iter().map(str::to_owned).collect();
        let config = RunConfig::parse(&text, &name, index.path(), &sets).unwrap();
        let run_dir = index.path().join(recipe.file_stem().unwrap());
        assert_eq!(train_in(run_dir, config, false).summary.steps, 2, "{name}");
    }
}
