//! Tests of modules that predict later tokens.

use super::{
    BLOCK, INTERLEAVED, LANES, PAIR, PAIRS, PIPELINE, Row, SHARDED, ZERO_2, ZERO_3, ZERO_BUBBLE,
    check_on_devices, run,
};
use crate::common::runs::{CORRECTED_EXPERTS, LLAMA, SINGLE_BRANCHES};

const THREE_TOKENS: &str = "train.predict_tokens=3";
const TENSOR: &str = "parallel.tensor=2";
const CONTEXT: &str = "parallel.context=2";

#[test]
fn modules_have_equal_bits_and_planned_bytes() {
    let documents = [
        THREE_TOKENS,
        "data.separator=10",
        "data.document_mask=true",
        "data.pack_documents=true",
        "model.embedding_scale=2.0",
        "train.steps=3",
    ];
    let tied = [
        "model.key_value_heads=4",
        "model.tied=true",
        "model.loss_pieces=2",
        LANES,
        THREE_TOKENS,
        "train.steps=2",
    ];
    let experts =
        [CORRECTED_EXPERTS, &["train.predict_tokens=2", "precision.compute=bf16", "train.steps=2"]].concat();
    let pieces = [
        "parallel.context_lanes=4",
        THREE_TOKENS,
        "data.separator=10",
        "data.document_mask=true",
        "train.steps=2",
    ];
    let adapters = [THREE_TOKENS, "lora.rank=2", "lora.targets=['all-linear']", "train.steps=2"];
    let single =
        [SINGLE_BRANCHES, &["parallel.tensor_lanes=2", "train.predict_tokens=2", "train.steps=2"]].concat();
    let rows: [Row; 6] = [
        (
            LLAMA,
            &documents,
            &[
                &[],
                &[PAIR, SHARDED, BLOCK],
                &["parallel.data=4", ZERO_3, PAIRS],
                &[PIPELINE, ZERO_BUBBLE],
                &[PIPELINE, PAIR, INTERLEAVED, ZERO_2],
                &[PIPELINE, PAIR, ZERO_3],
            ],
        ),
        (LLAMA, &tied, &[&[], &[TENSOR, BLOCK], &[TENSOR, PIPELINE], &[TENSOR, PAIR, ZERO_3]]),
        (LLAMA, &experts, &[&[], &[PAIR, ZERO_2], &[PIPELINE, BLOCK]]),
        (LLAMA, &single, &[&[], &[TENSOR, PIPELINE, BLOCK], &[TENSOR, PAIR, ZERO_3]]),
        (LLAMA, &pieces, &[&[], &[CONTEXT, BLOCK], &[CONTEXT, PIPELINE], &[CONTEXT, PAIR, ZERO_3]]),
        (LLAMA, &adapters, &[&[], &[PAIR, ZERO_3], &[PIPELINE, BLOCK]]),
    ];
    check_on_devices(&rows);
}

/// Modules are trained on their own tokens, and the loss of the next token is reported apart.
#[test]
fn modules_learn_beside_the_model() {
    let [alone, with, heavy] = [
        &["train.steps=1"][..],
        &["train.steps=1", "train.predict_tokens=2"],
        &["train.steps=1", "train.predict_tokens=2", "train.predict_tokens_weight=1.0"],
    ]
    .map(|sets| run(LLAMA, sets));
    assert_eq!(alone.losses, with.losses);
    assert_eq!(with.figure, heavy.figure);
    assert_ne!(with.weights, heavy.weights);
    let later = with.figure.clone().unwrap();
    let later = later.as_array().unwrap();
    assert_eq!(later.len(), 1);
    // Untrained models predict all tokens alike.
    let difference = later[0].as_f64().unwrap() - f64::from(with.losses()[0]);
    assert!(difference.abs() < 0.1, "{difference}");
}
