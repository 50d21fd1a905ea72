//! Tests of resuming, and of starting from other weights: what may change, and what is refused.

use super::*;

#[test]
fn checkpoints_of_other_runs_are_refused_by_key() {
    let table: [(&[&str], &str); 9] = [
        (
            &["model.width=64"],
            "model.width cannot change when a run is resumed: 64 here, 32 in the checkpoint",
        ),
        (
            &["model.heads=4", "train.seed=7"],
            "these settings cannot change when a run is resumed: model.heads: 4 here, 2 in the checkpoint; \
             train.seed: 7 here, 1 in the checkpoint",
        ),
        (&["optim.kind=sgd"], "optim.kind: \"sgd\" here, \"adamw\" in the checkpoint"),
        (
            &["optim.kind=muon"],
            "optim.kind cannot change when a run is resumed: \"muon\" here, \"adamw\" in the checkpoint",
        ),
        (&["train.steps=5"], "train.steps = 5: "),
        (
            &["train.micro_batch_size=4", "train.global_batch_size=16"],
            "train.global_batch_size: 16 here, 8 in the checkpoint; \
             train.micro_batch_size: 4 here, 2 in the checkpoint",
        ),
        (&["parallel.lanes=2"], "parallel.lanes cannot change when a run is resumed: 2 here, 4 in the"),
        (&["data.validation_fraction=0.1"], "data.validation_fraction cannot change"),
        (&["data.paths=['README.md']"], "data.paths: it is not the text that"),
    ];
    let directory = tempfile::tempdir().unwrap();
    let run_dir = finished(directory.path());
    let before = contents(&run_dir);
    for (overrides, expected) in table {
        let refused = resume(&run_dir, GPT, overrides).unwrap_err();
        let text = refused.to_string();
        assert_eq!(refused.exit_status(), 2, "{text}");
        assert!(text.contains(expected) && text.contains("step-000006"), "{text}");
        assert!(contents(&run_dir) == before, "{text}");
    }
}

/// Changes keys that may change on resuming: keys that affect no bits, and keys that affect only later bits.
#[test]
fn a_run_resumes_with_other_steps_schedule_and_regularisation() {
    let directory = tempfile::tempdir().unwrap();
    let run_dir = finished(directory.path());
    let reference = newest(&run_dir).unwrap().unwrap().losses().unwrap();
    for free in [
        &["train.steps=8", "optim.learning_rate=2e-3", "optim.min_learning_rate=1e-5"][..],
        &["train.steps=9", "optim.warmup_steps=1", "optim.weight_decay=0", "optim.clip_norm=0.1"],
        &[
            "train.steps=10",
            "parallel.data=2",
            "telemetry.every=1",
            "checkpoint.keep=1",
            "memory.limit_bytes=1000000000",
            "train.validate_every=1",
            "parallel.bucket_bytes=512",
        ],
    ] {
        let before = newest(&run_dir).unwrap().unwrap().step();
        let report = resume(&run_dir, GPT, &[free, &["checkpoint.every=100"]].concat()).unwrap();
        assert_eq!(report.summary.more["resumed_after_step"], before);
        assert_eq!(report.summary.losses[..6], reference);
        assert!(report.unplanned.as_ref().is_some_and(Vec::is_empty), "{free:?}");
        let steps = newest(&run_dir).unwrap().unwrap().step();
        assert_eq!((steps, metrics(&run_dir).len() as u64), (report.summary.steps, steps));
    }
    assert_eq!(steps(&run_dir), [10]);
}

#[test]
fn a_run_resumes_from_an_earlier_step() {
    let directory = tempfile::tempdir().unwrap();
    let run_dir = finished(directory.path());
    let whole = bits(&full(&directory.path().join("whole"), GPT, &[]));
    let go_on = |step: u64| {
        let run_dir = Some(run_dir.clone());
        let step = Some(step);
        let options = RunOptions { run_dir, step, resume: true, quiet: true, ..RunOptions::default() };
        run::train(config(GPT, &["checkpoint.every=2", WAIT]), options)
    };
    let text = go_on(3).unwrap_err().to_string();
    assert!(text.ends_with("it holds no checkpoint of step 3; there are those of steps 2, 4, 6"), "{text}");
    let report = go_on(2).unwrap();
    assert_eq!(report.summary.more["resumed_after_step"], 2);
    assert_eq!(bits(&report), whole);
    // Checkpoints of abandoned steps are kept, but not used by the run.
    let aside = run_dir.join("checkpoints/aside-1");
    assert!(Checkpoint::open(&aside.join("step-000004")).is_ok());
    assert!(Checkpoint::open(&aside.join("step-000006")).is_ok());
    assert_eq!(steps(&run_dir), [4, 6]);
}

/// Checks that a resumed run uses the reference scores of its first start, on any grid.
#[test]
fn a_run_on_pairs_resumes_with_the_scores_of_its_start() {
    let directory = tempfile::tempdir().unwrap();
    let whole = directory.path().join("whole");
    let parts = directory.path().join("parts");
    let kept = ["checkpoint.every=1000"];
    let reference = full(&whole, PREFERENCE, &kept);
    let file = "reference_scores.safetensors";
    let first = one_step(&parts, PREFERENCE, &[&kept[..], &["parallel.data=2"]].concat());
    let scores = std::fs::read(parts.join(file)).unwrap();
    assert!(first.interrupted && scores == std::fs::read(whole.join(file)).unwrap());
    for (damage, expected) in [(None, "reference_scores.safetensors: "), (Some(9), "it has no scores")] {
        match damage {
            None => std::fs::remove_file(parts.join(file)).unwrap(),
            Some(bytes) => std::fs::write(parts.join(file), &scores[..bytes]).unwrap(),
        }
        let refused = resume(&parts, PREFERENCE, &kept).unwrap_err();
        assert!(refused.exit_status() == 2 && refused.to_string().contains(expected), "{refused}");
    }
    std::fs::write(parts.join(file), scores).unwrap();
    let sets = [&kept[..], &["parallel.pipeline=2", "parallel.data=2"]].concat();
    assert_eq!(bits(&full(&parts, PREFERENCE, &sets)), bits(&reference));
}

/// Checks that `--from` uses only the weights, on any grid, and reports mismatches before anything is
/// written.
#[test]
fn a_new_run_starts_with_the_weights_of_another() {
    let directory = tempfile::tempdir().unwrap();
    let old = finished(directory.path());
    let start = |name: &str, from: &Path, step: Option<u64>, overrides: &[&str]| {
        let run_dir = Some(directory.path().join(name));
        let from = Some(from.to_owned());
        let options = RunOptions { run_dir, from, step, quiet: true, ..RunOptions::default() };
        run::train(config(GPT, overrides), options)
    };
    let other = ["train.steps=3", "train.seed=9", "optim.learning_rate=1e-5", "data.paths=['README.md']"];
    let first = start("a", &old, None, &other).unwrap();
    assert_eq!(first.summary.losses.len(), 3);
    assert!(!first.summary.more.contains_key("resumed_after_step"));
    // The weights come from the other run: the loss begins far below that of random weights.
    let drawn = full(&directory.path().join("drawn"), GPT, &other);
    assert!(first.summary.losses[0] + 0.1 < drawn.summary.losses[0], "{:?}", first.summary.losses);
    let checkpoint = old.join("checkpoints/step-000006");
    for (name, overrides) in [
        ("b", &["parallel.data=2", "parallel.zero_stage=1"][..]),
        ("c", &["parallel.pipeline=2"]),
        ("d", &["parallel.data=4"]),
    ] {
        let again = start(name, &checkpoint, None, &[&other, overrides].concat()).unwrap();
        assert_eq!(bits(&again), bits(&first), "{overrides:?}");
    }
    let earlier = start("e", &old, Some(2), &other).unwrap();
    assert_ne!(earlier.summary.losses, first.summary.losses);
    for (from, step, overrides, expected) in [
        (&old, None, &["model.width=64"][..], "it is of another model: model.width: 64 here, 32 in the"),
        (&old, Some(5), &[], "it holds no checkpoint of step 5; there are those of steps 2, 4, 6"),
        (&directory.path().to_owned(), None, &[], "it holds no checkpoint; set checkpoint.every"),
    ] {
        let refused = start("f", from, step, overrides).unwrap_err();
        assert!(refused.exit_status() == 2 && refused.to_string().contains(expected), "{refused}");
        assert!(!directory.path().join("f").exists());
    }
}

/// Checks that a run's weights are quantized, and that quantized weights are used unchanged, or refused for
/// another format.
#[test]
fn a_base_in_codes_starts_from_another_run() {
    let directory = tempfile::tempdir().unwrap();
    let old = finished(directory.path());
    let start = |name: &str, from: &Path, more: &[&str]| {
        let run_dir = Some(directory.path().join(name));
        let options =
            RunOptions { run_dir, from: Some(from.to_owned()), quiet: true, ..RunOptions::default() };
        let sets = [&["train.steps=1", "checkpoint.every=1", "lora.rank=2"], more].concat();
        run::train(config(GPT, &sets), options)
    };
    let loss = |report: TrainReport| report.summary.losses[0];
    let plain = loss(start("plain", &old, &[]).unwrap());
    let coded = loss(start("coded", &old, &["lora.base=fp8"]).unwrap());
    assert!(coded != plain && (coded - plain).abs() < 1e-2 * plain, "{coded} {plain}");
    let from_values = directory.path().join("plain");
    let from_codes = directory.path().join("coded");
    let again = |name, from: &Path, grid| loss(start(name, from, &["lora.base=fp8", grid]).unwrap());
    let values = again("values", &from_values, "parallel.data=2");
    let codes = again("codes", &from_codes, "parallel.pipeline=2");
    assert!((values - codes).abs() < 1e-2 * values, "{values} {codes}");
    for base in ["compute", "int4"] {
        let refused = start("refused", &from_codes, &[&format!("lora.base={base}")]).unwrap_err();
        assert!(
            refused.exit_status() == 2 && refused.to_string().contains("codes of lora.base = \"fp8\""),
            "{refused}"
        );
    }
}

/// Rewrites a manifest and recomputes its hash.
pub(super) fn rewrite_manifest(path: &Path, change: impl Fn(&str) -> String) {
    let text = change(&std::fs::read_to_string(path).unwrap());
    let (before, rest) = text.split_once("\"manifest_sha256\": \"").unwrap();
    let (_, after) = rest.split_once('"').unwrap();
    let with = |hash: &str| format!("{before}\"manifest_sha256\": \"{hash}\"{after}");
    // The hash covers the text without indentation. No value contains a colon followed by a space.
    let bare = with("").lines().map(str::trim).collect::<String>().replace("\": ", "\":");
    std::fs::write(path, with(&hexadecimal(&Sha256::digest(bare)))).unwrap();
}

/// Checks that a checkpoint of another version of Plimsoll or its libraries is resumed, with a warning in the
/// record.
#[test]
fn checkpoints_of_other_versions_are_resumed_with_a_warning() {
    let directory = tempfile::tempdir().unwrap();
    let corpus = directory.path().join("corpus.txt");
    let text = "The load line of a ship says how much she may carry, and in which waters.\n".repeat(100);
    std::fs::write(&corpus, &text).unwrap();
    let paths = format!("data.paths=['{}']", corpus.display());
    let version = format!("\"version\": \"{}\"", env!("CARGO_PKG_VERSION"));
    // A checkpoint of the next version, and one of a version that hashed the whole corpus and recorded no
    // libraries.
    let earlier = |text: &str| {
        let (before, rest) = text.split_once("  \"corpus\": {").unwrap();
        let (_, after) = rest.split_once("  },\n").unwrap();
        let digest = hexadecimal(&Sha256::digest(std::fs::read(&corpus).unwrap()));
        let hash = format!("\"corpus_sha256\": \"{digest}\"");
        let text = format!("{before}{after}").replace("\"corpus_sha256\": null", &hash);
        text.replace("  \"libraries\": \"\",\n", "").replace(&version, "\"version\": \"0.0.1\"")
    };
    let next = |text: &str| {
        let text = text.replace("\"libraries\": \"\"", "\"libraries\": \"cuBLAS 99\"");
        text.replace(&version, "\"version\": \"9.9.9\"")
    };
    type Rewrite<'a> = &'a dyn Fn(&str) -> String;
    let table: [(&str, Rewrite, &[&str]); 2] = [
        ("earlier", &earlier, &["written by Plimsoll 0.0.1, and this is"]),
        ("next", &next, &["written by Plimsoll 9.9.9", "written by the libraries cuBLAS 99"]),
    ];
    for (name, rewrite, expected) in table {
        let run_dir = directory.path().join(name);
        std::fs::write(&corpus, &text).unwrap();
        assert!(one_step(&run_dir, GPT, &[&paths]).interrupted);
        rewrite_manifest(&run_dir.join("checkpoints/step-000001/manifest.json"), rewrite);
        resume(&run_dir, GPT, &[&paths]).unwrap();
        let warnings = sessions(&run_dir)[1]["warnings"].clone();
        assert_eq!(warnings.as_array().unwrap().len(), expected.len(), "{warnings}");
        assert!(expected.iter().all(|words| warnings.to_string().contains(words)), "{warnings}");
    }
}

/// Checks that a corpus is recognised by its size and samples, or by its whole content if configured.
/// Modification times are only recorded.
#[test]
fn a_corpus_is_recognised_without_being_read_completely() {
    let directory = tempfile::tempdir().unwrap();
    let corpus = directory.path().join("corpus.txt");
    let run_dir = directory.path().join("run");
    let text: Vec<u8> = (0..1_500_000_u32).map(|index| b'a' + (index % 23) as u8).collect();
    let write = |changed: Option<usize>, time: u64| {
        let mut text = text.clone();
        changed.into_iter().for_each(|position| text[position] ^= 1);
        std::fs::write(&corpus, text).unwrap();
        let time = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(time);
        std::fs::File::options().write(true).open(&corpus).unwrap().set_modified(time).unwrap();
    };
    let paths = format!("data.paths=['{}']", corpus.display());
    for (full_hash, between) in [("data.full_hash=false", true), ("data.full_hash=true", false)] {
        let _ = std::fs::remove_dir_all(&run_dir);
        write(None, 1_000_000_000);
        assert!(one_step(&run_dir, GPT, &[&paths, full_hash]).interrupted);
        // A change in the first sample, between two samples, and no change.
        for (position, goes_on) in [(Some(1), false), (Some(20_000), between), (None, true)] {
            write(position, 1_000_000_001);
            let resumed = resume(&run_dir, GPT, &[&paths, full_hash]);
            assert_eq!(resumed.is_ok(), goes_on, "{full_hash}, byte {position:?}");
            match resumed {
                Err(error) => assert!(error.to_string().contains("is not the text that"), "{error}"),
                Ok(_) if between => {
                    let warnings = sessions(&run_dir)[1]["warnings"].to_string();
                    assert!(warnings.contains("files of data.paths have another time"), "{warnings}");
                    break;
                }
                Ok(_) => {}
            }
        }
    }
}

#[test]
fn runs_that_cannot_resume_give_the_reason() {
    let directory = tempfile::tempdir().unwrap();
    let bare = directory.path().join("bare");
    full(&bare, GPT, &["checkpoint.minutes=0"]);
    let text = resume(&bare, GPT, &[]).unwrap_err().to_string();
    assert!(text.contains("holds a run that ended and no checkpoint"), "{text}");

    let run_dir = finished(directory.path());
    let again = train_in(&run_dir, config(GPT, &[]), DeviceChoice::Cpu).unwrap_err().to_string();
    assert!(again.contains("it holds a run already"), "{again}");
    let options = RunOptions { resume: true, ..RunOptions::default() };
    let text = run::train(config(GPT, &[]), options.clone()).unwrap_err().to_string();
    assert!(text.contains("--run-dir"), "{text}");
    let options = RunOptions { run_dir: Some(run_dir), device: DeviceChoice::Meta, ..options };
    let text = run::train(config(GPT, &[]), options).unwrap_err().to_string();
    assert!(text.contains("--device meta"), "{text}");
}
