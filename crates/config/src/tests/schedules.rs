//! Tests of learning-rate schedules, and of steps set by epochs.

use super::*;

/// Each schedule has its own defaults, and epochs set the number of steps.
#[test]
fn schedules_have_their_own_defaults() {
    for (schedule, minimum) in [("cosine", 0.1), ("linear", 0.0), ("wsd", 0.0)] {
        let sets = ["optim.learning_rate=1", &format!("optim.schedule={schedule}")];
        assert_eq!(parse(LEAST, &sets).unwrap().optim.min_learning_rate, minimum, "{schedule}");
    }
    let wsd = ["optim.schedule=wsd", "train.steps=101"];
    assert_eq!(parse(LEAST, &wsd).unwrap().optim.decay_steps, 11);
    assert!(parse(LEAST, &wsd).unwrap().to_toml().contains("\ndecay_steps = 11\n"));
    let text =
        |schedule: &str| format!("{LEAST}[optim]\nmin_learning_rate = 1e-5\nschedule = {schedule:?}\n");
    assert!(refusal(&text("constant"), &[]).contains("belongs to optim.schedule = \"cosine\" or \"linear\""));
    assert_eq!(parse(&text("linear"), &[]).unwrap().optim.min_learning_rate, 1e-5);
    assert_eq!(
        refusal("[data]\nkind = \"synthetic\"\n", &["train.epochs=1"]),
        "--set train.epochs=1: train.epochs needs data that ends, and data.kind = \"synthetic\" does not: \
         use train.steps"
    );
}

/// An explicit warm-up or decay must fit into the run with the other; the defaults are always short enough.
#[test]
fn warm_up_and_decay_do_not_overlap() {
    fn wsd<'a>(sets: &[&'a str]) -> Vec<&'a str> {
        [&["optim.schedule=wsd"], sets].concat()
    }
    for (sets, expected) in [
        (
            &["optim.decay_steps=301"][..],
            "optim.warmup_steps = 20 and optim.decay_steps = 301 are more than the 300 steps",
        ),
        (
            &["optim.decay_steps=281"],
            "optim.warmup_steps = 20 and optim.decay_steps = 281 are more than the 300 steps",
        ),
        (
            &["optim.warmup_steps=95", "train.steps=100"],
            "optim.warmup_steps = 95 and optim.decay_steps = 10 are",
        ),
        (
            &["optim.warmup_steps=60", "optim.decay_steps=60", "train.steps=100"],
            "are more than the 100 steps",
        ),
    ] {
        let refused = refusal(LEAST, &wsd(sets));
        assert!(refused.contains(expected), "{sets:?}: {refused}");
    }
    for sets in
        [&["optim.decay_steps=280"][..], &["train.steps=5"], &["optim.warmup_steps=90", "train.steps=100"]]
    {
        parse(LEAST, &wsd(sets)).unwrap();
    }
    // The data decides the steps of epochs.
    let epochs = parse(LEAST, &wsd(&["train.epochs=1", "optim.decay_steps=400"])).unwrap();
    assert_eq!(epochs.clone().with_epoch_of(32 * 500).overlapping_decay(), None);
    assert!(epochs.with_epoch_of(32 * 410).overlapping_decay().unwrap().contains("the 410 steps of the run"));
}

/// Setting both steps and epochs in one file, or on one command line, is an error; the command line takes
/// precedence over the file.
#[test]
fn steps_and_epochs_are_stated_once() {
    let file = |keys: &str| format!("{LEAST}[train]\n{keys}\n");
    for (keys, sets) in [
        ("epochs = 1\nsteps = 3", &[][..]),
        ("", &["train.epochs=1", "train.steps=3"]),
        ("epochs = 2\nsteps = 5", &["train.epochs=1", "train.steps=3"]),
        ("steps = 5", &["train.steps=3", "train.epochs=1"]),
    ] {
        let refused = refusal(&file(keys), sets);
        assert!(refused.contains(" decides the steps, and train.steps = "), "{keys:?} {sets:?}: {refused}");
    }
    for (keys, sets, steps) in [
        ("epochs = 1", &["train.steps=3"][..], 3),
        ("steps = 3", &["train.epochs=1"], 10),
        ("epochs = 1", &[], 10),
        ("epochs = 0\nsteps = 3", &[], 3),
        ("steps = 5", &["train.steps=3", "train.epochs=0"], 3),
        ("epochs = 2\nsteps = 5", &["train.steps=3"], 3),
        ("epochs = 2\nsteps = 5", &["train.epochs=1"], 10),
    ] {
        let config = parse(&file(keys), sets).unwrap();
        let resolved = config.with_epoch_of(320);
        assert_eq!(resolved.train.steps, steps, "{keys:?} {sets:?}");
        // The text of a run has both.
        let again = parse(&resolved.to_toml(), &[]).unwrap().with_epoch_of(320);
        assert_eq!(again.train.steps, steps, "{keys:?} {sets:?}");
    }
}

#[test]
fn epochs_decide_the_steps_unless_the_command_line_does() {
    let text = format!("{LEAST}[train]\nepochs = 1.5\n[optim]\nschedule = \"wsd\"\n");
    let config = parse(&text, &[]).unwrap();
    assert_eq!((config.train.steps, config.train.epochs), (300, 1.5));
    let resolved = config.with_epoch_of(1000);
    assert_eq!((resolved.train.steps, resolved.optim.decay_steps), (47, 5));
    // The resolved text decides the same steps again, and keeps what followed.
    let again = resolved.with(&[]).unwrap().with_epoch_of(1000);
    assert_eq!(again, resolved);
    assert_eq!(resolved.with(&["train.steps=9".to_owned()]).unwrap().with_epoch_of(1000).train.steps, 9);
    assert_eq!(parse(&text, &["train.steps=9"]).unwrap().with_epoch_of(1000).train.steps, 9);
}

/// Warm-up and decay in steps, tokens or parts of the run, and which of several keys decides.
#[test]
fn lengths_of_schedules_have_units() {
    // A step has 32 sequences of 128 tokens.
    let table: [(&str, &[&str], u64); 9] = [
        ("warmup = 12", &[], 12),
        ("warmup = \"2.5%\"", &[], 8),
        ("warmup = \"100k tokens\"", &[], 25),
        ("warmup = \"100k tokens\"", &["train.global_batch_size=64"], 13),
        ("warmup = \"2.5%\"", &["optim.warmup_steps=3"], 3),
        ("warmup = \"2.5%\"", &["optim.warmup_ratio=0.1"], 30),
        ("warmup_ratio = 0.5", &["optim.warmup=2%"], 6),
        ("warmup_steps = 7", &["optim.warmup=4096 tokens"], 1),
        ("warmup = \"2.5%\"\nwarmup_ratio = 0", &["optim.schedule_start=100"], 5),
    ];
    for (optim, sets, steps) in table {
        let text = format!("{LEAST}[train]\nsteps = 300\n[optim]\n{optim}\n");
        let config = parse(&text, sets).unwrap();
        assert_eq!(config.optim.warmup_steps, steps, "{optim} {sets:?}");
        let resolved = parse(&config.to_toml(), &[]).unwrap();
        assert_eq!(resolved, config, "{optim} {sets:?}");
        let again = parse(&config.to_toml(), &["optim.warmup_steps=9"]).unwrap();
        assert_eq!((again.optim.warmup_steps, again.optim.warmup.is_unset()), (9, true), "{optim} {sets:?}");
    }
    let wsd = ["optim.schedule=wsd", "train.steps=300", "optim.decay=20%"];
    let config = parse(LEAST, &wsd).unwrap();
    assert_eq!(config.optim.decay_steps, 60);
    assert_eq!(parse(&config.to_toml(), &["optim.decay_steps=7"]).unwrap().optim.decay_steps, 7);
    let of_epochs = parse(LEAST, &["train.epochs=1", "optim.warmup=10%"]).unwrap().with_epoch_of(32 * 70);
    assert_eq!((of_epochs.train.steps, of_epochs.optim.warmup_steps), (70, 7));
}

#[test]
fn lengths_that_contradict_each_other_are_refused() {
    let words =
        "is not a number of steps, a part of the run such as \"2%\", or tokens such as \"100M tokens\"";
    let table: [(&[&str], &str); 8] = [
        (&["optim.warmup=3 epochs"], words),
        (&["optim.warmup=101%"], words),
        (&["optim.warmup=-1"], words),
        (&["optim.warmup=0.5"], "optim.warmup takes a number of steps"),
        (
            &["optim.warmup=2%", "optim.warmup_steps=3"],
            "optim.warmup decides the steps of warm-up, and optim.warmup_steps does: write one",
        ),
        (
            &["optim.schedule=wsd", "optim.decay=2%", "optim.decay_steps=3"],
            "optim.decay decides the steps of decay, and optim.decay_steps does: write one",
        ),
        (&["optim.decay=2%"], "optim.decay"),
        (
            &["optim.schedule_start=50", "train.steps=50"],
            "optim.schedule_start = 50 is not below train.steps = 50",
        ),
    ];
    for (sets, expected) in table {
        let text = refusal(LEAST, sets);
        assert!(text.contains(expected), "{text}");
    }
    let both = format!("{LEAST}[optim]\nwarmup = \"2%\"\nwarmup_ratio = 0.1\n");
    assert!(refusal(&both, &[]).contains("optim.warmup decides the steps of warm-up"));
}
