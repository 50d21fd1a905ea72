//! Tests of all kinds of data, including conversations.

use super::{BLOCK, INTERLEAVED, ONCE, Row, SHARDED, ZERO_3, ZERO_BUBBLE, check};
use crate::common::runs::{CHAT, GPT, LLAMA};
use crate::common::runs::{MIXTURE, PACKED, SEQUENTIAL, SEQUENTIAL_MIXTURE, TOKENIZED, TOKENS};

/// All kinds of data, with and without reading ahead.
const SOURCES: &[Row] = &[
    (
        GPT,
        &TOKENS,
        &[
            &["data.prefetch=0"],
            &["data.prefetch=1"],
            &["parallel.data=2"],
            &["parallel.data=4", SHARDED],
            &["parallel.pipeline=2", ZERO_BUBBLE],
        ],
    ),
    (
        LLAMA,
        &SEQUENTIAL,
        &[&["data.prefetch=0"], &["parallel.data=2"], &["parallel.data=4"], &["parallel.pipeline=2"]],
    ),
    (
        GPT,
        &PACKED,
        &[
            &["model.dropout=0.1", "data.prefetch=0"],
            &["model.dropout=0.1", "parallel.data=2", BLOCK],
            &["model.dropout=0.1", "parallel.data=4", SHARDED],
            &["model.dropout=0.1", "parallel.data=4", ZERO_3],
            &["model.dropout=0.1", "parallel.pipeline=2", ZERO_BUBBLE],
        ],
    ),
    (
        LLAMA,
        &PACKED,
        &[
            &["parallel.data=1"],
            &["parallel.data=4"],
            &["parallel.pipeline=2", "parallel.data=2", INTERLEAVED],
        ],
    ),
    (
        GPT,
        &MIXTURE,
        &[
            &["parallel.data=1"],
            &["parallel.data=2", SHARDED],
            &["parallel.data=4"],
            &["parallel.pipeline=2"],
        ],
    ),
    (GPT, &SEQUENTIAL_MIXTURE, &[&["parallel.data=1"], &["parallel.data=2"], &["parallel.data=4"]]),
    (GPT, &TOKENIZED, &[&["parallel.data=1"], &["parallel.data=2"], &["parallel.data=4"]]),
];

/// Grids for all kinds of data: alone, sharded, in a pipeline, recomputed.
const ON_GRIDS: &[&[&str]] = &[
    &[],
    &["parallel.data=2", SHARDED],
    &["parallel.pipeline=2"],
    &["memory.recompute=block", "parallel.data=4", "data.prefetch=0"],
];

/// Conversations, padded and packed, alone and with adapters.
const CHATS: &[Row] = &[
    (
        CHAT,
        &[],
        &[
            &["parallel.data=1"],
            &["parallel.data=2"],
            &["parallel.data=4", SHARDED],
            &["parallel.data=3", ZERO_3],
            &["parallel.pipeline=2", "parallel.data=2"],
            &["parallel.pipeline=4", BLOCK],
        ],
    ),
    (
        CHAT,
        &["data.pack_documents=true", "data.document_mask=true", "lora.rank=2"],
        &[&["parallel.data=1"], &["parallel.data=4", SHARDED], &["parallel.pipeline=2", ZERO_BUBBLE, BLOCK]],
    ),
    // Samples grouped by length.
    (
        CHAT,
        &["data.group_by_length=true", "train.steps=9"],
        &[
            &["parallel.data=1"],
            &["parallel.data=2", BLOCK, "data.prefetch=0"],
            &["parallel.data=4", SHARDED],
            &["parallel.data=3", ZERO_3],
        ],
    ),
    (CHAT, &["data.group_by_length=true", "train.steps=7", "memory.preallocate=true"], ONCE),
    (CHAT, &["data.group_by_length=true", "parallel.tensor=2", "train.verify_every=3"], ONCE),
    // Validations that are rarer than verifications.
    (CHAT, &["train.verify_every=2", "train.validate_every=7", "train.steps=16", "parallel.data=2"], ONCE),
    (
        CHAT,
        &[
            "data.group_by_length=true",
            "model.kind=llama",
            "model.experts=4",
            "train.balance_loss=0.01",
            "parallel.data=2",
            "train.steps=6",
            "memory.empty_cache_every=2",
        ],
        ONCE,
    ),
    // Without validation, and with prompts learned too.
    (
        CHAT,
        &["data.validation_fraction=0", "data.train_on=all"],
        &[&["parallel.data=1"], &["parallel.data=3", ZERO_3], &["parallel.pipeline=2", "parallel.data=2"]],
    ),
    (CHAT, &["data.validation_fraction=0", "memory.empty_cache_every=2", "parallel.data=2"], ONCE),
    // Verified, with experts, and in a pipeline.
    (CHAT, &["parallel.data=2", SHARDED], ONCE),
    (
        CHAT,
        &[
            "model.kind=llama",
            "model.experts=4",
            "train.balance_loss=0.01",
            "parallel.data=2",
            "train.verify_every=2",
        ],
        ONCE,
    ),
    (CHAT, &["data.pack_documents=true", "data.document_mask=true", "parallel.pipeline=2"], ONCE),
];

#[test]
fn data_of_every_kind_has_equal_bits() {
    check(SOURCES);
    for (text, source) in [
        (GPT, &TOKENS[..]),
        (LLAMA, &SEQUENTIAL),
        (GPT, &PACKED),
        (LLAMA, &PACKED),
        (GPT, &MIXTURE),
        (LLAMA, &SEQUENTIAL_MIXTURE),
        (GPT, &TOKENIZED),
    ] {
        check(&[(text, &[source, &["train.steps=2"]].concat(), ON_GRIDS)]);
    }
}

#[test]
fn conversations_keep_the_bits() {
    check(CHATS);
}
