//! Tests of checkpoints and the optimizer's groups: order and number of groups may change, the kind of a
//! parameter may not.

use super::*;

const BIASES: &str = "{match='*.bias', beta1=0.5}";
const TABLES: &str = "{match='w*e.*', learning_rate=0.5}";

#[test]
fn a_run_resumes_with_other_groups_of_the_same_settings() {
    let directory = tempfile::tempdir().unwrap();
    let run_dir = directory.path().join("parts");
    let groups = |groups: &[&str]| format!("optim.groups=[{}]", groups.join(", "));
    let kept = ["checkpoint.every=1000", "optim.clip_norm=0.1"];
    let [first, reversed] = [groups(&[BIASES, TABLES]), groups(&[TABLES, BIASES])];
    let divided = groups(&[
        "{match='wpe.*', learning_rate=0.5}",
        "{match='h.0.*weight', name='same'}",
        BIASES,
        "{match='wte.*', learning_rate=0.5}",
    ]);
    let reference = full(&directory.path().join("whole"), GPT, &[&kept[..], &[&first]].concat());
    for (groups, grid) in [
        (&first, "parallel.data=2"),
        (&reversed, "parallel.zero_stage=1"),
        (&divided, "parallel.pipeline=2"),
        (&reversed, "optim.offload=true"),
    ] {
        assert!(one_step(&run_dir, GPT, &[&kept[..], &[groups, grid]].concat()).interrupted);
    }
    let report = full(&run_dir, GPT, &[&kept[..], &[&divided]].concat());
    assert!(report.unplanned.as_ref().is_some_and(Vec::is_empty));
    assert_eq!(bits(&report), bits(&reference));
    assert!(arrays(&run_dir) == arrays(&directory.path().join("whole")));
}

#[test]
fn a_parameters_kind_cannot_change() {
    let directory = tempfile::tempdir().unwrap();
    let run_dir = finished(directory.path());
    let before = contents(&run_dir);
    for (groups, expected) in [
        (
            "optim.groups=[{match='h.1.*', kind='lion'}]",
            "the kind of a parameter cannot change when a run is resumed: h.1.ln_1.weight is updated by \"lion\" \
             here (optim.groups), by \"adamw\" in the checkpoint",
        ),
        (
            "optim.groups=[{match='wpe.*', kind='sgd'}]",
            "wpe.weight is updated by \"sgd\" here (optim.groups), by \"adamw\" in the checkpoint",
        ),
    ] {
        let refused = resume(&run_dir, GPT, &[groups]).unwrap_err();
        let text = refused.to_string();
        assert_eq!(refused.exit_status(), 2, "{text}");
        assert!(text.contains(expected) && text.contains("step-000006"), "{text}");
        assert!(contents(&run_dir) == before, "{text}");
    }
}

/// Globs are compared with the names of the whole model before anything is written.
#[test]
fn globs_without_a_parameter_are_refused_on_every_grid() {
    let directory = tempfile::tempdir().unwrap();
    let run_dir = directory.path().join("run");
    for (sets, expected) in [
        (
            &["optim.groups=[{match=['wte.*', 'h.7.*']}]"][..],
            "optim.groups: group 1: \"h.7.*\" matches no parameter, such as ",
        ),
        (&["optim.groups=[{match='wpe.bias'}]", "parallel.pipeline=2"], "\"wpe.bias\" matches no parameter"),
        (
            &["optim.groups=[{match='wpe.*'}]", "train.freeze=['w*e.*']"],
            "group 1: \"wpe.*\" matches no trained parameter, such as ",
        ),
        (
            &["optim.groups=[{match='h.*'}, {match='h.1.*'}]", "parallel.data=2"],
            "optim.groups: group 2: groups before it match all of its parameters, and the first match counts",
        ),
    ] {
        let refused = resume(&run_dir, GPT, sets).unwrap_err();
        let text = refused.to_string();
        assert_eq!(refused.exit_status(), 2, "{text}");
        assert!(text.contains(expected), "{text}");
        assert!(!run_dir.exists(), "{text}");
    }
}

/// A resumed run has a new schedule from its first step on.
#[test]
fn a_resumed_run_has_a_new_schedule() {
    let directory = tempfile::tempdir().unwrap();
    let run_dir = finished(directory.path());
    let sets = [
        "train.steps=12",
        "optim.learning_rate=4e-3",
        "optim.schedule=linear",
        "optim.min_learning_rate=0",
        "optim.warmup=2",
        "optim.schedule_start=6",
    ];
    resume(&run_dir, GPT, &[&sets[..], &["checkpoint.every=100"]].concat()).unwrap();
    let lines = std::fs::read_to_string(run_dir.join("metrics.jsonl")).unwrap();
    let rate =
        |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["learning_rate"].as_f64();
    let rates: Vec<_> = lines.lines().map(|line| rate(line).unwrap()).collect();
    let expected = [2e-3, 4e-3, 4e-3, 3e-3, 2e-3, 1e-3];
    assert_eq!(rates.len(), 12);
    assert!(
        rates[6..].iter().zip(expected).all(|(rate, expected)| (rate - expected).abs() < 1e-8),
        "{rates:?}"
    );
}
