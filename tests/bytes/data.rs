//! Data of every kind, conversations included.

use super::{SHARDED, compare, compare_all};
use crate::common::runs::{CHAT, GPT, LLAMA, PREFERENCE};
use crate::common::runs::{MIXTURE, PACKED, SEQUENTIAL, SEQUENTIAL_MIXTURE, TOKENIZED, TOKENS};

/// Data of every kind, alone, sharded, recomputed and in a pipeline.
#[test]
fn plans_of_every_kind_of_data_equal_runs() {
    let grids: [&[&str]; 4] = [
        &[],
        &["parallel.data=2", SHARDED],
        &["parallel.pipeline=2"],
        &["memory.recompute=block", "parallel.data=4", "data.prefetch=0"],
    ];
    let table: [(&str, &[&str]); 7] = [
        (GPT, &TOKENS),
        (LLAMA, &SEQUENTIAL),
        (GPT, &PACKED),
        (LLAMA, &PACKED),
        (GPT, &MIXTURE),
        (LLAMA, &SEQUENTIAL_MIXTURE),
        (GPT, &TOKENIZED),
    ];
    for (text, sources) in table {
        for grid in grids {
            compare(text, &[sources, grid, &["train.steps=2"]].concat());
        }
    }
}

/// Pairs of answers, whose reference is computed before the first step.
#[test]
fn plans_of_preferences_equal_runs() {
    let table: &[(&str, &[&str])] = &[
        (PREFERENCE, &["parallel.data=2", "parallel.zero_stage=3", "model.loss_pieces=3"]),
        (PREFERENCE, &["parallel.pipeline=2", "memory.recompute=block", "lora.rank=2"]),
        (PREFERENCE, &["preference.loss=orpo", "parallel.data=2", SHARDED, "memory.empty_cache_every=2"]),
        (PREFERENCE, &["preference.loss=ipo", "memory.empty_cache_every=2", "train.validate_every=1"]),
        (PREFERENCE, &["parallel.tensor=2", "parallel.tensor_lanes=2", "memory.preallocate=true"]),
        // Ranks that score unequal numbers of micro-batches, and some that score none.
        (PREFERENCE, &["parallel.data=5", "train.global_batch_size=5", "parallel.lanes=5"]),
        (PREFERENCE, &["parallel.data=4", "train.micro_batch_size=5", "train.global_batch_size=20"]),
        (
            PREFERENCE,
            &[
                "parallel.data=4",
                "train.micro_batch_size=5",
                "train.global_batch_size=20",
                "parallel.zero_stage=3",
            ],
        ),
    ];
    compare_all(table);
}

/// Conversations, padded and packed.
#[test]
fn plans_of_conversations_equal_runs() {
    let table: &[(&str, &[&str])] = &[
        (CHAT, &["parallel.data=2", SHARDED]),
        (
            CHAT,
            &[
                "model.kind=llama",
                "model.experts=4",
                "train.balance_loss=0.01",
                "parallel.data=2",
                "train.verify_every=2",
            ],
        ),
        (CHAT, &["data.pack_documents=true", "data.document_mask=true", "parallel.pipeline=2"]),
    ];
    compare_all(table);
}
