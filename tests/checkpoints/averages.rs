//! Tests of averages of weights in checkpoints.

use super::*;

const EMA: &str = "train.ema=0.75";

/// Returns the f32 values of each array of a checkpoint whose name begins with `prefix`, by the rest of it.
fn values(checkpoint: &Checkpoint, prefix: &str) -> Vec<(String, Vec<f32>)> {
    let names = checkpoint.names().filter_map(|name| Some((name, name.strip_prefix(prefix)?)));
    let read = |(name, rest): (&str, &str)| {
        let bytes = checkpoint.bytes(name).unwrap();
        let values = bytes.chunks(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()));
        (rest.to_owned(), values.collect())
    };
    names.map(read).collect()
}

/// Returns the averages in a checkpoint, and the weights of the same names.
fn averages_and_weights(checkpoint: &Checkpoint) -> [Vec<(String, Vec<f32>)>; 2] {
    let averages = values(checkpoint, "ema.");
    let mut weights = values(checkpoint, "");
    weights.retain(|(name, _)| averages.iter().any(|(averaged, _)| averaged == name));
    [averages, weights]
}

fn opened(run_dir: &Path, step: u64) -> Checkpoint {
    Checkpoint::open(&run_dir.join(format!("checkpoints/step-{step:06}"))).unwrap()
}

/// Moves averages towards weights by a quarter.
fn moved(averages: &mut [(String, Vec<f32>)], weights: &[(String, Vec<f32>)]) {
    for ((_, averages), (_, weights)) in averages.iter_mut().zip(weights) {
        for (average, weight) in averages.iter_mut().zip(weights) {
            *average = 0.25f32.mul_add(weight - *average, *average);
        }
    }
}

/// The average is the weights until its start, follows the formula afterwards, and changes no weight.
#[test]
fn the_average_of_each_step_follows_from_the_weights() {
    for (start, every) in [(0, 1), (2, 1), (1, 2)] {
        let directory = tempfile::tempdir().unwrap();
        let schedule = [format!("train.ema_start={start}"), format!("train.ema_every={every}")];
        let sets = [EMA, &schedule[0], &schedule[1], "checkpoint.every=1", "checkpoint.keep=9", WAIT];
        full(directory.path(), GPT, &sets);
        let mut expected: Option<Vec<(String, Vec<f32>)>> = None;
        for step in 1..=6u64 {
            let [averages, weights] = averages_and_weights(&opened(directory.path(), step));
            assert_eq!(averages.len(), weights.len());
            assert!(averages.len() > 20);
            match &mut expected {
                Some(expected) if step > start => {
                    if (step - start) % every == 0 {
                        moved(expected, &weights);
                    }
                }
                // The first checkpoint of an average that begins with the initial weights.
                None if step > start => expected = Some(averages.clone()),
                _ => expected = Some(weights.clone()),
            }
            assert!(expected.as_ref() == Some(&averages), "step {step} of {schedule:?}");
            assert_eq!(averages == weights, step <= start, "step {step} of {schedule:?}");
        }
    }
}

/// A run resumed with an average that its checkpoint lacks begins it as a copy of the weights.
#[test]
fn an_average_begins_where_a_run_without_one_is_resumed() {
    for more in [&[][..], &["precision.compute=bf16", "model.width=64"], &["optim.offload=true"]] {
        let directory = tempfile::tempdir().unwrap();
        let run_dir = directory.path().join("run");
        let all =
            |sets: &[&'static str]| [more, sets, &["checkpoint.every=1", "checkpoint.keep=9", WAIT]].concat();
        full(&run_dir, GPT, &all(&["train.steps=3"]));
        let [none, _] = averages_and_weights(&opened(&run_dir, 3));
        assert!(none.is_empty());
        let grid = ["train.steps=5", EMA, "parallel.data=2", "parallel.zero_stage=1"];
        let report = full(&run_dir, GPT, &all(&grid));
        assert_eq!(report.summary.more["resumed_after_step"], 3);
        let mut expected = values(&opened(&run_dir, 3), "");
        for step in [4, 5] {
            let [averages, weights] = averages_and_weights(&opened(&run_dir, step));
            expected.retain(|(name, _)| averages.iter().any(|(averaged, _)| averaged == name));
            moved(&mut expected, &weights);
            assert!(expected == averages && averages.len() > 20, "step {step} of {more:?}");
        }
        // Without the key, a resumed run goes on without the average.
        full(&run_dir, GPT, &all(&["train.steps=6"]));
        let [none, _] = averages_and_weights(&opened(&run_dir, 6));
        assert!(none.is_empty());
    }
}

/// A run that begins with the weights of another begins its average with them, not with that run's average.
#[test]
fn an_average_begins_with_the_weights_of_another_run() {
    let directory = tempfile::tempdir().unwrap();
    let first = directory.path().join("first");
    full(&first, GPT, &[EMA, "train.steps=2", "checkpoint.every=2"]);
    let from = RunOptions {
        run_dir: Some(directory.path().join("second")),
        from: Some(first.clone()),
        quiet: true,
        ..RunOptions::default()
    };
    run::train(config(GPT, &[EMA, "train.steps=1", "checkpoint.every=1"]), from).unwrap();
    let [_, mut expected] = averages_and_weights(&opened(&first, 2));
    let [averages, weights] = averages_and_weights(&opened(&directory.path().join("second"), 1));
    moved(&mut expected, &weights);
    assert!(expected == averages);
}
