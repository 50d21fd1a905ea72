//! Tests of sequences that do not divide over the configured ranks.

use super::*;

#[test]
fn divided_sequences_are_refused_where_they_cannot_be() {
    let table: [(&[&str], &str); 8] = [
        (&["parallel.context_lanes=6"], "parallel.context_lanes = 6: it is no power of two: use 4 or 8"),
        (
            &["parallel.context=2", "parallel.context_lanes=2"],
            "parallel.context_lanes = 2: parallel.context = 2 needs a power of two that 4 divides",
        ),
        (&["parallel.context=3"], "parallel.context = 3: it is no power of two: use 2 or 4"),
        (
            &["parallel.context=2", "model.context=126"],
            "parallel.context_lanes = 4: it does not divide model.context = 126",
        ),
        (
            &["parallel.context=2", "model.kind=mlp", "data.kind=synthetic"],
            "parallel.context_lanes = 4: model.kind: this kind of model has no sequences that can be divided",
        ),
        (
            &[
                "parallel.context=2",
                "model.kind=llama",
                "model.layer_types=['state_space', 'full_attention']",
                "model.context=8",
            ],
            "parallel.context_lanes = 4: a convolution of model.state_convolution_width = 4 reads 3 tokens \
             before its own, and a piece has 2",
        ),
        (
            &["parallel.context=2", "parallel.zero_stage=1", "parallel.lanes=2"],
            "parallel.lanes = 2: ranks that share sequences (parallel.context = 2) and state \
             (parallel.zero_stage = 1) need a lane for each of the 4 micro-batches of a step: set \
             parallel.lanes = 4, which decides the bits, on every grid",
        ),
        (
            &["parallel.context=2", "parallel.data=2", "parallel.zero_stage=2", "parallel.shard=1"],
            "parallel.shard = 1: with parallel.context = 2, a group is a multiple of 2 ranks",
        ),
    ];
    for (overrides, expected) in table {
        let text = if overrides.contains(&"model.kind=mlp") { "" } else { LEAST };
        let refused = refusal(text, overrides);
        assert!(refused.contains(expected), "{refused}\n{expected}");
    }
}

#[test]
fn pieces_follow_the_ranks_that_share_sequences() {
    let parallel = |overrides: &[&str]| parse(LEAST, overrides).unwrap().parallel;
    assert_eq!(parallel(&[]).context_lanes, 1);
    assert_eq!(parallel(&["parallel.context=4"]).context_lanes, 8);
    let shared = parallel(&["parallel.context=2", "parallel.data=2", "parallel.zero_stage=1"]);
    assert_eq!((shared.replicas(), shared.owners(), shared.sharding_stage()), (4, 4, 2));
    let apart = parallel(&["parallel.context=2", "parallel.data=2"]);
    assert_eq!((apart.replicas(), apart.owners(), apart.sharding_stage()), (2, 2, 0));
}
