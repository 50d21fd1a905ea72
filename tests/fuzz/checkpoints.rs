//! Damaged checkpoints are refused by name.

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
    let directory = tempfile::tempdir().unwrap();
    let run_dir = directory.path().join("run");
    let overrides = ["train.steps=2", "train.validate_every=0", "checkpoint.every=2"];
    train_in(&run_dir, config(GPT, &overrides), DeviceChoice::Cpu).unwrap();
    let (_, path) = list(&run_dir).unwrap().pop().unwrap();
    Checkpoint::open(&path).unwrap();
    let files = ["manifest.json", "state.safetensors"].map(|name| path.join(name));
    let whole = files.each_ref().map(|file| fs::read(file).unwrap());
    let (budget, mut random, mut round) = (Budget::of_fuzzer(), Random::new(11), 0);
    while budget.within(round, 60) {
        let which = random.below(2);
        let mut damaged = random.damaged(&whole[which], &PIECES);
        if which == 1 && random.once_in(2) {
            // The header is short, and most damage misses it.
            let head = random.damaged(&whole[1][..200.min(whole[1].len())], &PIECES);
            damaged = [&head, &whole[1][200.min(whole[1].len())..]].concat();
        }
        fs::write(&files[which], &damaged).unwrap();
        let opened = catch_unwind(AssertUnwindSafe(|| Checkpoint::open(&path)));
        match opened.unwrap_or_else(|_| panic!("a panic in round {round}")) {
            // Damage that leaves the parsed values unchanged, such as a space in the manifest, is accepted.
            Ok(_) => assert!(which == 0 || damaged == whole[1], "round {round} was accepted"),
            Err(error) => {
                let (text, name) = (error.to_string(), files[which].to_string_lossy().into_owned());
                assert!(text.contains(&name) || text.contains("state.safetensors"), "round {round}: {text}");
                assert_eq!(text.lines().count(), 1, "{text}");
            }
        }
        fs::write(&files[which], &whole[which]).unwrap();
        round += 1;
    }
    Checkpoint::open(&path).unwrap();
}
