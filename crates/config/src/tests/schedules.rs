//! Learning-rate schedules, and the steps of epochs.

use super::*;

/// The rates of a schedule and the steps of epochs, and what follows from them.
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
        refusal(LEAST, &["optim.schedule=wsd", "optim.decay_steps=301"]),
        "--set optim.decay_steps=301: optim.decay_steps = 301 is more than train.steps = 300"
    );
    assert_eq!(
        refusal("[data]\nkind = \"synthetic\"\n", &["train.epochs=1"]),
        "--set train.epochs=1: train.epochs needs data that ends, and data.kind = \"synthetic\" does not: \
         use train.steps"
    );
}

#[test]
fn epochs_decide_the_steps_unless_the_command_line_does() {
    let text = format!("{LEAST}[train]\nepochs = 1.5\nsteps = 7\n[optim]\nschedule = \"wsd\"\n");
    let config = parse(&text, &[]).unwrap();
    assert_eq!((config.train.steps, config.train.epochs), (7, 1.5));
    let resolved = config.with_epoch_of(1000);
    assert_eq!((resolved.train.steps, resolved.optim.decay_steps), (47, 5));
    // The resolved text decides the same steps again, and keeps what followed.
    let again = resolved.with(&[]).unwrap().with_epoch_of(1000);
    assert_eq!(again, resolved);
    assert_eq!(resolved.with(&["train.steps=9".to_owned()]).unwrap().with_epoch_of(1000).train.steps, 9);
    assert_eq!(parse(&text, &["train.steps=9"]).unwrap().with_epoch_of(1000).train.steps, 9);
    let both = parse(&text, &["train.steps=9", "train.epochs=0.001"]).unwrap();
    assert_eq!(both.with_epoch_of(1000).train.steps, 1);
}
