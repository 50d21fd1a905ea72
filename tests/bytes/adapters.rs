//! Models of which a part is trained: frozen parameters and low-rank adapters.

use super::{SHARDED, compare_all};
use crate::common::runs::{GPT, LLAMA, MLP};

/// Frozen parameters: of a stage, sharded, recomputed, biases alone.
#[test]
fn plans_of_frozen_parameters_equal_runs() {
    let table: &[(&str, &[&str])] = &[
        (GPT, &["train.freeze=['w?e.*', 'h.0.*']", "parallel.pipeline=2", "parallel.data=2"]),
        (GPT, &["train.freeze=['h.1.*', 'ln_f.*']", "parallel.data=4", SHARDED, "memory.recompute=block"]),
        (LLAMA, &["train.freeze=['*.weight']", "model.qkv_bias=true", "parallel.data=2"]),
        (
            LLAMA,
            &[
                "train.freeze=['model.layers.[0-2].*']",
                "parallel.pipeline=4",
                "parallel.schedule=zero-bubble",
                "checkpoint.every=2",
            ],
        ),
        (MLP, &["train.freeze=['0.*', '4.*']", "parallel.pipeline=5"]),
    ];
    compare_all(table);
}

/// Low-rank adapters.
#[test]
fn plans_of_adapters_equal_runs() {
    let table: &[(&str, &[&str])] = &[
        (LLAMA, &["lora.rank=4", "parallel.data=2", SHARDED]),
        (LLAMA, &["lora.rank=4", "lora.dropout=0.1", "memory.recompute=block", "parallel.pipeline=2"]),
        (
            LLAMA,
            &[
                "lora.rank=2",
                "lora.targets=['k_proj', 'down_proj']",
                "parallel.pipeline=4",
                "checkpoint.every=2",
            ],
        ),
        (GPT, &["lora.rank=8", "lora.targets=['c_attn']", "parallel.data=4"]),
        (MLP, &["lora.rank=2", "model.activation=gelu", "parallel.pipeline=5"]),
        (
            LLAMA,
            &[
                "lora.rank=4",
                "lora.base=nf4",
                "precision.compute=bf16",
                "parallel.pipeline=2",
                "memory.recompute=block",
                "checkpoint.every=2",
            ],
        ),
        (LLAMA, &["lora.rank=2", "lora.base=int4", "parallel.data=2", "parallel.zero_stage=3"]),
        (
            LLAMA,
            &[
                "lora.rank=2",
                "lora.base=nf4",
                "parallel.tensor=2",
                "parallel.data=2",
                "parallel.zero_stage=3",
            ],
        ),
        (GPT, &["lora.rank=8", "lora.base=fp8", "lora.targets=['c_attn']"]),
    ];
    compare_all(table);
}
