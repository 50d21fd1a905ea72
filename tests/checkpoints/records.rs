//! Tests of the records of a run's sessions, and of non-finite losses.

use super::*;

/// Reads the summary of a finished run.
fn summary(run_dir: &Path) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(run_dir.join("summary.json")).unwrap()).unwrap()
}

/// Checks that each process that trained in a directory has a record, which later processes keep.
#[test]
fn sessions_are_recorded() {
    let directory = tempfile::tempdir().unwrap();
    let run_dir = directory.path().join("run");
    assert!(one_step(&run_dir, GPT, &["parallel.data=2"]).interrupted);
    let first = sessions(&run_dir);
    assert_eq!(first.len(), 1);
    assert_eq!((&first[0]["ending"], &first[0]["after_step"]), (&"interrupted".into(), &0.into()));
    let grid = serde_json::json!({"data": 2, "pipeline": 1, "context": 1, "tensor": 1});
    assert_eq!(first[0]["grid"], grid);
    assert_eq!(first[0]["results"]["steps"], 1);
    resume(&run_dir, GPT, &["optim.clip_norm=0.5"]).unwrap();
    let second = sessions(&run_dir);
    assert_eq!((second.len(), &second[0]), (2, &first[0]));
    assert_eq!((&second[1]["ending"], &second[1]["after_step"]), (&"complete".into(), &1.into()));
    let changed = second[1]["changed"].as_object().unwrap();
    assert_eq!(changed.keys().collect::<Vec<_>>(), ["optim.clip_norm"]);
    assert_eq!(changed["optim.clip_norm"]["to"], "0.5");
    let results = &second[1]["results"];
    let peak = summary(&run_dir)["ranks"][0]["peak_allocated_bytes"].clone();
    assert_eq!((&results["steps"], &results["peak_allocated_bytes"]), (&6.into(), &peak));
    assert!(results["tokens_per_second"].as_f64().unwrap() > 0.0);
    assert!(results["wall_seconds"].as_f64().unwrap() > 0.0);
    let result = |session: usize, key: &str| second[session]["results"][key].as_f64();
    assert!(
        [0, 1]
            .iter()
            .all(|session| result(*session, "longest_save_stall_seconds").is_some_and(|time| time > 0.0))
    );
    assert!(result(0, "load_seconds").is_none() && result(1, "load_seconds").is_some_and(|time| time > 0.0));
    // No steps remain: the record is unchanged, even with other settings.
    let before = contents(&run_dir);
    let report = resume(&run_dir, GPT, &["parallel.data=2", "telemetry.every=1"]).unwrap();
    assert_eq!(report.summary.world_size, 1);
    assert!(report.to_string().contains("did 6 steps"), "{report}");
    assert!(contents(&run_dir) == before);
}

/// Checks that a non-finite loss ends the run, and that the error names the earlier checkpoints, which are
/// kept.
#[test]
fn a_loss_that_is_not_finite_is_never_saved() {
    let wild = [
        "optim.learning_rate=1e6",
        "optim.warmup_steps=0",
        "optim.clip_norm=0",
        "train.steps=60",
        "checkpoint.every=1",
        WAIT,
    ];
    for (most, grid) in [(1, "parallel.data=1"), (1, "parallel.pipeline=2"), (3, "parallel.data=2")] {
        let directory = tempfile::tempdir().unwrap();
        let run_dir = directory.path().join("run");
        let most_steps = format!("train.max_nonfinite_steps={most}");
        let all = [&wild[..], &[grid, &most_steps]].concat();
        let error = train_in(&run_dir, config(GPT, &all), DeviceChoice::Cpu).unwrap_err();
        let text = error.to_string();
        assert_eq!(error.exit_status(), 1, "{text}");
        let summary = summary(&run_dir);
        let last = summary["nonfinite"]["step"].as_u64().unwrap();
        assert!(last < 60 && summary["steps"] == last, "{summary}");
        let checkpoint = newest(&run_dir).unwrap().unwrap();
        assert_eq!(checkpoint.step(), last - most, "{grid}");
        assert!(checkpoint.losses().unwrap().iter().all(|loss| loss.is_finite()));
        let named = format!("the last good checkpoint is {}", checkpoint.path().display());
        assert!(text.starts_with(&format!("step {last}: the loss is ")), "{text}");
        assert!(text.contains("and the gradient norm ") && text.ends_with(&named), "{text}");
        assert_eq!(sessions(&run_dir)[0]["ending"], "non_finite");
        let page = run::report_run(&run_dir, &[]).unwrap().to_html();
        assert!(page.contains(&format!("This run ended after step {last}: its loss is ")));
        assert!(page.contains("<path class=\"lost\""));
    }
}

/// Checks that a run which continues despite non-finite losses fails at its end if its last state cannot be
/// saved.
#[test]
fn a_run_that_ends_without_a_finite_loss_fails() {
    let directory = tempfile::tempdir().unwrap();
    let run_dir = directory.path().join("run");
    let sets = [
        "optim.learning_rate=1e38",
        "optim.warmup_steps=0",
        "train.max_nonfinite_steps=100",
        "checkpoint.every=2",
    ];
    let error = train_in(&run_dir, config(GPT, &sets), DeviceChoice::Cpu).unwrap_err();
    assert_eq!(error.exit_status(), 1, "{error}");
    assert!(error.to_string().starts_with("step 6: the loss is "), "{error}");
    assert!(newest(&run_dir).unwrap().is_none());
    assert_eq!(summary(&run_dir)["steps"], 6);
    assert_eq!(sessions(&run_dir)[0]["ending"], "non_finite");
}

/// Checks that a run that ended early does no further step, whatever its record contains, unless its length
/// is raised.
#[test]
fn a_run_that_has_ended_early_does_no_further_step() {
    let directory = tempfile::tempdir().unwrap();
    let run_dir = directory.path().join("run");
    let sets = [
        "train.steps=40",
        "train.validate_every=1",
        "train.patience=1",
        "optim.learning_rate=0.3",
        "optim.warmup_steps=0",
    ];
    let ended = full(&run_dir, GPT, &sets).summary.steps;
    assert!(ended < 40, "{ended}");
    let before = contents(&run_dir);
    for more in [&[][..], &["parallel.data=2"], &["train.steps=50"]] {
        let report = resume(&run_dir, GPT, &[&sets[..], more].concat()).unwrap();
        assert_eq!(report.summary.steps, ended, "{more:?}");
        assert!(contents(&run_dir) == before, "{more:?}");
    }
    std::fs::remove_file(run_dir.join("summary.json")).unwrap();
    assert_eq!(resume(&run_dir, GPT, &sets).unwrap().summary.steps, ended);
    assert_eq!(metrics(&run_dir).len() as u64, ended);
    let report = resume(&run_dir, GPT, &[&sets[..], &["train.patience=30"]].concat()).unwrap();
    assert!(report.summary.steps > ended, "{report}");
}

/// Checks that JSON replaces the invalid characters of a run's name that is not UTF-8.
#[test]
fn runs_of_any_name_are_listed_as_json() {
    use std::os::unix::ffi::OsStrExt;
    let directory = tempfile::tempdir().unwrap();
    for name in [&b"one"[..], b"caf\xe9"] {
        one_step(&directory.path().join(std::ffi::OsStr::from_bytes(name)), GPT, &[]);
    }
    let listed = serde_json::to_value(run::list_runs(directory.path()).unwrap()).unwrap();
    let names: Vec<_> = listed.as_array().unwrap().iter().map(|run| run["path"].as_str().unwrap()).collect();
    assert!(names.len() == 2 && names[0].ends_with("caf\u{fffd}") && names[1].ends_with("one"), "{names:?}");
}
