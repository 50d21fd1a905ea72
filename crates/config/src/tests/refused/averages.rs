//! Tests of refused keys of an average of the weights.

use super::*;

#[test]
fn keys_of_an_average_that_cannot_work_are_refused() {
    const EMA: &str = "train.ema=0.999";
    let table: [(&[&str], &str); 8] = [
        (&["train.ema=1"], "--set train.ema=1: train.ema = 1 is not a number from 0 to below 1"),
        (&["train.ema=-0.5"], "--set train.ema=-0.5: train.ema = -0.5 is not a number from 0 to below 1"),
        (
            &[EMA, "train.ema_every=0"],
            "--set train.ema_every=0: train.ema_every = 0 is not an integer from 1 to 9,223,372,036,854,775,807",
        ),
        (
            &["train.ema_every=2"],
            "--set train.ema_every=2: train.ema_every needs an average of the weights: set train.ema, such as \
             0.999",
        ),
        (
            &["train.ema_start=2"],
            "--set train.ema_start=2: train.ema_start needs an average of the weights: set train.ema, such as \
             0.999",
        ),
        (
            &["train.validate_ema=true"],
            "--set train.validate_ema=true: train.validate_ema needs an average of the weights: set \
             train.ema, such as 0.999",
        ),
        (
            &[EMA, "train.steps=50", "train.ema_start=50"],
            "--set train.ema_start=50: train.ema_start = 50 is not below train.steps = 50",
        ),
        (
            &[EMA, "train.validate_ema=true", "data.kind=chat", "data.validation_fraction=0"],
            "--set train.validate_ema=true: train.validate_ema needs validation data: data.validation_paths, \
             or a data.validation_fraction above 0",
        ),
    ];
    for (overrides, expected) in table {
        assert_eq!(refusal(LEAST, overrides), expected);
    }
    let config = parse(LEAST, &[EMA, "train.ema_start=49", "train.steps=50", "train.validate_ema=true"]);
    assert!(config.is_ok_and(|config| config.train.ema == 0.999 && config.train.ema_every == 1));
}
