//! Families of models with their options.

use super::{SHARDED, compare_all};
use crate::common::runs::{BOTTLENECKS, GPT, LLAMA, RESNET};

/// Llama, alone, sharded, recomputed and in pipelines.
#[test]
fn plans_of_llamas_equal_runs() {
    let table: &[(&str, &[&str])] = &[
        (LLAMA, &[]),
        (LLAMA, &["model.qk_norm=true", "parallel.data=2", SHARDED]),
        (LLAMA, &["model.tied=true", "memory.recompute=block", "parallel.data=4"]),
        (LLAMA, &["model.tied=true", "parallel.pipeline=2", "parallel.data=2"]),
        (LLAMA, &["model.qkv_bias=true", "parallel.pipeline=4", "parallel.schedule=zero-bubble"]),
    ];
    compare_all(table);
}

/// Dropout, other heads, and losses in pieces of the vocabulary.
#[test]
fn plans_of_options_of_families_equal_runs() {
    let table: &[(&str, &[&str])] = &[
        (GPT, &["model.dropout=0.2", "parallel.data=2", SHARDED]),
        (GPT, &["model.dropout=0.2", "parallel.pipeline=2", "parallel.data=2", "memory.recompute=block"]),
        (
            GPT,
            &["model.tied=false", "model.biases=false", "model.positions=sinusoidal", "parallel.pipeline=2"],
        ),
        (LLAMA, &["model.dropout=0.2", "model.key_value_heads=1", "memory.recompute=2"]),
        (LLAMA, &["model.dropout=0.2", "parallel.pipeline=2", "parallel.schedule=zero-bubble"]),
        (LLAMA, &["model.loss_pieces=3", "model.logit_soft_cap=4.0", "parallel.data=2"]),
        (LLAMA, &["model.loss_pieces=3", "parallel.pipeline=2", "parallel.schedule=zero-bubble"]),
        (GPT, &["model.loss_pieces=2", "model.vocabulary=1000", "parallel.data=4", SHARDED]),
        (GPT, &["model.logit_soft_cap=4.0", "parallel.pipeline=2", "parallel.data=2"]),
    ];
    compare_all(table);
}

/// Residual networks: workspaces of convolutions, running statistics, cuts between blocks of different
/// shapes.
#[test]
fn plans_of_residual_networks_equal_runs() {
    let table: &[(&str, &[&str])] = &[
        (RESNET, &[]),
        (RESNET, &["parallel.data=2", SHARDED]),
        (RESNET, &["memory.recompute=block", "parallel.data=4"]),
        (RESNET, &["parallel.pipeline=4", "parallel.schedule=zero-bubble"]),
        (BOTTLENECKS, &["parallel.pipeline=2", "parallel.data=2", "memory.recompute=2"]),
    ];
    compare_all(table);
}
