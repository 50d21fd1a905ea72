//! Tests of which checkpoints are kept, and of their file format.

use super::*;

#[test]
fn checkpoints_change_nothing_and_the_newest_are_kept() {
    // `checkpoint.every`, `checkpoint.keep`, `checkpoint.minutes`, and the steps whose checkpoints remain
    // after six steps.
    let table: [(u64, u64, f64, &[u64]); 7] = [
        (1, 2, 10.0, &[5, 6]),
        (2, 9, 10.0, &[2, 4, 6]),
        (4, 1, 0.0, &[6]),
        (4, 2, 10.0, &[4, 6]),
        (0, 1, 0.0, &[]),
        // The default, and an interval that has always passed after a step.
        (0, 9, 10.0, &[6]),
        (0, 9, 1e-9, &[1, 2, 3, 4, 5, 6]),
    ];
    let mut expected = None;
    for (every, keep, minutes, left) in table {
        let directory = tempfile::tempdir().unwrap();
        let run_dir = directory.path().join("run");
        let overrides = [
            format!("checkpoint.every={every}"),
            format!("checkpoint.keep={keep}"),
            format!("checkpoint.minutes={minutes}"),
        ];
        let report = full(&run_dir, GPT, &[&overrides[0], &overrides[1], &overrides[2], WAIT]);
        assert_eq!(steps(&run_dir), left, "every {every}, keep {keep}, {minutes} minutes");
        assert!(report.unplanned.as_ref().is_some_and(Vec::is_empty));
        assert_eq!(&bits(&report), expected.get_or_insert_with(|| bits(&report)));
        let is_hidden =
            |(path, _): &(PathBuf, _)| path.strip_prefix(&run_dir).unwrap().to_string_lossy().contains("/.");
        let hidden = contents(&run_dir).iter().any(is_hidden);
        assert!(!hidden, "nothing temporary is left");
    }
}

#[test]
fn the_state_is_a_safetensors_file() {
    let directory = tempfile::tempdir().unwrap();
    let report = full(directory.path(), GPT, &["checkpoint.every=3"]);
    let checkpoint = newest(directory.path()).unwrap().unwrap();
    assert_eq!(checkpoint.step(), 6);
    assert_eq!(checkpoint.losses().unwrap(), report.summary.losses);
    assert_eq!(checkpoint.validations().last, report.validation_loss);
    assert_eq!((checkpoint.validations().step, report.validation_step), (Some(6), Some(6)));
    assert_eq!(checkpoint.configuration()["model.width"], "32");
    assert!(!checkpoint.configuration().contains_key("parallel.data"));
    let bytes = std::fs::read(checkpoint.path().join("state.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let names = file.names();
    let parameters: Vec<_> =
        names.iter().filter(|name| !name.starts_with("adamw.") && !name.starts_with("run.")).collect();
    assert!(parameters.len() > 20);
    assert_eq!(names.len(), 3 * parameters.len() + 1);
    for name in parameters {
        let tensor = |name: &str| file.tensor(name).unwrap();
        assert_eq!(tensor(name).dtype(), Dtype::F32);
        for moment in ["first", "second"] {
            let moment = tensor(&format!("adamw.{moment}.{name}"));
            assert_eq!(moment.shape(), tensor(name).shape());
            assert!(moment.data().iter().any(|byte| *byte != 0), "{name}");
        }
    }
}

#[test]
fn files_of_killed_processes_are_removed_and_never_read() {
    let directory = tempfile::tempdir().unwrap();
    let run_dir = directory.path();
    one_step(run_dir, GPT, &["checkpoint.every=1"]);
    // A complete directory under a temporary name is not a checkpoint.
    let temporary = run_dir.join("checkpoints/.step-000005.tmp-1");
    copy(&run_dir.join("checkpoints/step-000001"), &temporary);
    std::fs::create_dir(run_dir.join("checkpoints/.step-000004.tmp-2")).unwrap();
    let mut file = std::fs::OpenOptions::new().append(true).open(run_dir.join("metrics.jsonl")).unwrap();
    std::io::Write::write_all(&mut file, b"{\"step\":2,\"loss\":1.0}\n{\"step\":3,\"lo").unwrap();
    let report = resume(run_dir, GPT, &["checkpoint.every=1", WAIT]).unwrap();
    assert_eq!(report.summary.more["resumed_after_step"], 1);
    assert_eq!(steps(run_dir), [5, 6]);
    assert_eq!(std::fs::read_dir(run_dir.join("checkpoints")).unwrap().count(), 2);
    assert_eq!(metrics(run_dir).iter().map(|(step, _)| *step).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6]);
}

#[test]
fn an_unwritable_last_checkpoint_fails_the_run() {
    for (step, fails) in [(4, false), (6, true)] {
        let directory = tempfile::tempdir().unwrap();
        let run_dir = directory.path().join("run");
        std::fs::create_dir_all(run_dir.join("checkpoints")).unwrap();
        // A file has the name of the checkpoint's temporary directory.
        let name = format!("checkpoints/.step-{step:06}.tmp-{}", std::process::id());
        std::fs::write(run_dir.join(&name), "").unwrap();
        let ended = train_in(&run_dir, config(GPT, &["checkpoint.every=2", WAIT]), DeviceChoice::Cpu);
        match ended {
            Ok(_) => assert!(!fails),
            Err(error) => {
                let text = error.to_string();
                assert!(fails && error.exit_status() == 1, "{text}");
                assert!(text.contains(&run_dir.join(&name).display().to_string()), "{text}");
            }
        }
        let left: Vec<u64> = [2, 4, 6].into_iter().filter(|there| *there != step).collect();
        assert_eq!(steps(&run_dir), left);
        // Training itself was complete.
        assert!(run_dir.join("summary.json").exists());
        assert_eq!(metrics(&run_dir).len(), 6);
    }
}
