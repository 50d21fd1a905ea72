//! Fuzzes checkpoints: damaged ones are refused by name.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};

use checkpoint::{Checkpoint, list};
use worker::DeviceChoice;

use crate::common::random::{Budget, Random};
use crate::common::runs::{GPT, config, train_in};

const PIECES: [&[u8]; 8] =
    [b"18446744073709551615", b"-1", b"0", b"\"", b"{", b"]", b"null", b"\xff\xff\xff\xff\xff\xff\xff\xff"];

#[test]
fn damaged_checkpoints_are_refused_by_name() {
    let sharded = ["parallel.data=2", "parallel.zero_stage=1"];
    let second = "state-00002-of-00002.safetensors";
    refuses_damage(&["parallel.data=1"], "state.safetensors", &["manifest.json"]);
    refuses_damage(&sharded, second, &["manifest.json", "state.safetensors.index.json"]);
}

/// Damages the array file `state` and the `lists` of a checkpoint written on a grid.
fn refuses_damage(grid: &[&str], state: &str, lists: &[&str]) {
    let directory = tempfile::tempdir().unwrap();
    let run_dir = directory.path().join("run");
    let overrides = [&["train.steps=2", "train.validate_every=0", "checkpoint.every=2"], grid].concat();
    train_in(&run_dir, config(GPT, &overrides), DeviceChoice::Cpu).unwrap();
    let (_, path) = list(&run_dir).unwrap().pop().unwrap();
    Checkpoint::open(&path).unwrap();
    let files: Vec<_> = lists.iter().chain([&state]).map(|name| path.join(name)).collect();
    let whole: Vec<_> = files.iter().map(|file| fs::read(file).unwrap()).collect();
    let arrays = lists.len();
    let budget = Budget::of_fuzzer();
    let mut random = Random::new(11);
    let mut round = 0;
    while budget.within(round, 60) {
        let which = random.below(files.len());
        let mut damaged = random.damaged(&whole[which], &PIECES);
        if which == arrays && random.once_in(2) {
            // The header is short, and most damage would miss it.
            let (head, rest) = whole[arrays].split_at(200.min(whole[arrays].len()));
            damaged = [&random.damaged(head, &PIECES), rest].concat();
        }
        fs::write(&files[which], &damaged).unwrap();
        let opened = catch_unwind(AssertUnwindSafe(|| Checkpoint::open(&path)));
        match opened.unwrap_or_else(|_| panic!("a panic in round {round}")) {
            // Damage that does not change the parsed values, such as a space in the manifest, is accepted.
            Ok(_) => assert!(which == 0 || damaged == whole[which], "round {round} was accepted"),
            Err(error) => {
                let text = error.to_string();
                let name = files[which].to_string_lossy().into_owned();
                assert!(text.contains(&name) || text.contains("state"), "round {round}: {text}");
                assert_eq!(text.lines().count(), 1, "{text}");
            }
        }
        fs::write(&files[which], &whole[which]).unwrap();
        round += 1;
    }
    Checkpoint::open(&path).unwrap();
}
