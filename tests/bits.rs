//! Equal bits: the same losses and weights on every grid of ranks and with any number of threads.
#![allow(clippy::unwrap_used, clippy::panic, reason = "in tests, a panic is the report of a failure")]

mod common;

use common::devices::gpu;
use common::runs::{CHAT, GPT, LLAMA, MLP, config, train_in};
use common::runs::{MIXTURE, PACKED, SEQUENTIAL, SEQUENTIAL_MIXTURE, TOKENIZED, TOKENS};
use worker::DeviceChoice;

const SHARDED: &str = "parallel.zero_stage=1";
const GPIPE: &str = "parallel.schedule=gpipe";
const INTERLEAVED: &str = "parallel.schedule=interleaved";
const ZERO_BUBBLE: &str = "parallel.schedule=zero-bubble";
const BLOCK: &str = "memory.recompute=block";
const LIBRARY: &str = "parallel.reduction=nccl";

struct History {
    losses: Vec<u32>,
    weights: String,
    validation: Option<u64>,
}

fn history(text: &str, overrides: &[&str]) -> History {
    history_on(DeviceChoice::Cpu, text, overrides)
}

fn history_on(device: DeviceChoice, text: &str, overrides: &[&str]) -> History {
    let directory = tempfile::tempdir().unwrap();
    let report = train_in(&directory.path().join("run"), config(text, overrides), device).unwrap();
    History {
        losses: report.summary.losses.iter().map(|loss| loss.to_bits()).collect(),
        weights: report.summary.weights_sha256.clone(),
        validation: report.validation_loss.map(f64::to_bits),
    }
}

/// One row: a configuration, overrides of all its runs, and variants that must not change a bit.
type Row = (&'static str, &'static [&'static str], &'static [&'static [&'static str]]);

/// Data-parallel ranks: lanes, buckets, ZeRO stages 0 and 1, sums by the transport.
const GRIDS: &[Row] = &[
    (GPT, &[], &[&["parallel.data=1"], &["parallel.data=2"], &["parallel.data=4"]]),
    (MLP, &[], &[&["parallel.data=1"], &["parallel.data=2"], &["parallel.data=4"]]),
    // Several micro-batches a lane.
    (GPT, &["parallel.lanes=2"], &[&["parallel.data=1"], &["parallel.data=2"]]),
    // Buckets of one gradient each, and one bucket for all.
    (GPT, &["parallel.data=2"], &[&["parallel.bucket_bytes=512"], &["parallel.bucket_bytes=100000000"]]),
    // SGD on the transformer, without clipping.
    (GPT, &["optim.kind=sgd", "optim.clip_norm=0"], &[&["parallel.data=1"], &["parallel.data=4"]]),
    // Optimizer state whole and sharded; with clipping the norm affects every update.
    (
        GPT,
        &["optim.clip_norm=0.1", "model.width=64"],
        &[
            &["parallel.data=1"],
            &["parallel.data=1", SHARDED],
            &["parallel.data=2", SHARDED],
            &["parallel.data=4", SHARDED],
            &["parallel.data=4", SHARDED, "parallel.bucket_bytes=512"],
            &["parallel.data=2", SHARDED, "parallel.bucket_bytes=100000000"],
        ],
    ),
    (MLP, &[], &[&["parallel.data=1"], &["parallel.data=2", SHARDED], &["parallel.data=4", SHARDED]]),
    (
        MLP,
        &["optim.kind=adamw", "parallel.lanes=8"],
        &[&["parallel.data=1"], &["parallel.data=8"], &["parallel.data=8", SHARDED]],
    ),
    // Between threads the transport's own sum uses the same tree.
    (
        GPT,
        &["parallel.data=4"],
        &[&["parallel.reduction=tree"], &[LIBRARY], &[LIBRARY, SHARDED], &[LIBRARY, "parallel.data=2"]],
    ),
];

/// Pipelines with every schedule.
const STAGES: &[Row] = &[
    // The first and the last stage both hold the tied token embedding.
    (
        GPT,
        &["model.layers=4", "optim.clip_norm=0.1"],
        &[
            &["parallel.data=1"],
            &["parallel.pipeline=2"],
            &["parallel.pipeline=4"],
            &["parallel.pipeline=2", "parallel.data=2"],
            &["parallel.pipeline=2", "parallel.data=2", SHARDED],
            &["parallel.pipeline=2", "parallel.partition=[3, 1]"],
            &["parallel.pipeline=2", "parallel.partition=smallest"],
            &["parallel.pipeline=2", GPIPE],
            &["parallel.pipeline=4", GPIPE, "train.validation_micro_batches=3"],
            &["parallel.pipeline=2", "parallel.data=2", GPIPE, SHARDED],
            &["parallel.pipeline=2", INTERLEAVED],
            &["parallel.pipeline=2", "parallel.data=2", INTERLEAVED, SHARDED],
            &["parallel.pipeline=2", ZERO_BUBBLE],
            &["parallel.pipeline=4", ZERO_BUBBLE],
            &["parallel.pipeline=2", "parallel.data=2", ZERO_BUBBLE],
        ],
    ),
    (
        MLP,
        &[],
        &[
            &["parallel.data=1"],
            &["parallel.pipeline=5"],
            &["parallel.pipeline=2", GPIPE],
            &["parallel.pipeline=2", INTERLEAVED],
            &["parallel.pipeline=2", "parallel.data=2", ZERO_BUBBLE, SHARDED],
        ],
    ),
    // Several micro-batches a lane and in flight.
    (
        GPT,
        &["parallel.lanes=2", "train.global_batch_size=16"],
        &[
            &["parallel.data=1"],
            &["parallel.pipeline=2"],
            &["parallel.pipeline=2", ZERO_BUBBLE],
            &["parallel.pipeline=2", "parallel.data=2", GPIPE],
        ],
    ),
];

/// Recomputed and kept activations, on several grids.
const COMPUTED_AGAIN: &[Row] = &[
    // Recomputation in segments of any length.
    (
        GPT,
        &["model.layers=5"],
        &[
            &["parallel.data=1"],
            &[BLOCK],
            &["memory.recompute=2"],
            &["memory.recompute=1", "parallel.data=2"],
            &["memory.recompute=2", "memory.recompute_layers=3", "parallel.data=4", SHARDED],
            &[BLOCK, "memory.recompute_layers=4", "parallel.data=2"],
            &["memory.recompute=auto"],
        ],
    ),
    // Several micro-batches a lane.
    (
        GPT,
        &["parallel.lanes=2", "train.global_batch_size=16", "train.steps=3"],
        &[&["parallel.data=1"], &[BLOCK], &[BLOCK, "parallel.data=2"]],
    ),
    // Each stage recomputes in its own segments.
    (
        GPT,
        &["model.layers=5", "train.steps=3"],
        &[
            &["parallel.data=1"],
            &["parallel.pipeline=2", BLOCK],
            &["parallel.pipeline=2", "parallel.data=2", "memory.recompute=2", SHARDED],
            &["parallel.pipeline=2", "memory.recompute=2", ZERO_BUBBLE],
            &["parallel.pipeline=2", "memory.recompute=2", "memory.recompute_layers=2", INTERLEAVED],
        ],
    ),
    (
        MLP,
        &[],
        &[
            &["parallel.data=1"],
            &[BLOCK],
            &["memory.recompute=2", "parallel.data=2"],
            &["memory.recompute=3"],
        ],
    ),
    (MLP, &["model.activation=gelu"], &[&["parallel.data=1"], &[BLOCK], &["memory.recompute=2"]]),
];

/// Llama on every kind of grid, tied or not, recomputed or not.
const LLAMAS: &[Row] = &[
    (
        LLAMA,
        &["model.qk_norm=true"],
        &[
            &["parallel.data=1"],
            &["parallel.data=2", BLOCK],
            &["parallel.data=4", SHARDED],
            &["parallel.pipeline=2", ZERO_BUBBLE],
            &["parallel.pipeline=2", "parallel.data=2", INTERLEAVED, SHARDED],
            &["memory.recompute=2", "parallel.pipeline=2", GPIPE],
        ],
    ),
    (
        LLAMA,
        &["model.tied=true", "model.qkv_bias=true", "parallel.lanes=2"],
        &[
            &["parallel.data=1"],
            &["parallel.data=2", SHARDED],
            &["parallel.pipeline=4"],
            &["parallel.pipeline=2", "parallel.data=2", BLOCK],
        ],
    ),
];

/// Frozen parameters: whole stages at the start, in the middle and at the end, a tied table, biases alone.
const FROZEN: &[Row] = &[
    (
        GPT,
        &["model.layers=4", "optim.clip_norm=0.1", "train.freeze=['w?e.*', 'h.[01].*']"],
        &[
            &["parallel.data=1"],
            &["parallel.data=2"],
            &["parallel.data=4", SHARDED],
            &["parallel.pipeline=2"],
            &["parallel.pipeline=4", ZERO_BUBBLE],
            &["parallel.pipeline=2", "parallel.data=2", INTERLEAVED, SHARDED],
            &["parallel.pipeline=4", GPIPE, BLOCK],
            &["memory.recompute=2", "parallel.data=2"],
        ],
    ),
    (
        GPT,
        &["model.layers=4", "train.freeze=['h.[23].*', 'ln_f.*', '*.weight']"],
        &[
            &["parallel.data=1"],
            &["parallel.data=2", SHARDED, BLOCK],
            &["parallel.pipeline=4"],
            &["parallel.pipeline=2", "parallel.data=2", ZERO_BUBBLE, SHARDED],
        ],
    ),
    (
        GPT,
        &["model.tied=false", "train.freeze=['wte.*', '*.bias']"],
        &[&["parallel.data=1"], &["parallel.data=4", SHARDED], &["parallel.pipeline=2", BLOCK]],
    ),
    (
        LLAMA,
        &["model.qk_norm=true", "train.freeze=['*norm*', '*.mlp.down_proj.*', '*k_norm*']"],
        &[
            &["parallel.data=1"],
            &["parallel.data=2", BLOCK],
            &["parallel.pipeline=2", "parallel.data=2", SHARDED, ZERO_BUBBLE],
        ],
    ),
    (
        MLP,
        &["train.freeze=['[13].*']"],
        &[&["parallel.data=1"], &["parallel.pipeline=5"], &["parallel.data=4", SHARDED], &[BLOCK]],
    ),
];

/// Low-rank adapters: of all layers, of some rows of packed ones, with dropout and activations.
const ADAPTED: &[Row] = &[
    (
        LLAMA,
        &["lora.rank=4", "lora.alpha=8", "optim.clip_norm=0.1"],
        &[
            &["parallel.data=1"],
            &["parallel.data=2"],
            &["parallel.data=4", SHARDED],
            &["parallel.pipeline=2"],
            &["parallel.pipeline=4", ZERO_BUBBLE],
            &["parallel.pipeline=2", "parallel.data=2", INTERLEAVED, SHARDED],
            &[BLOCK],
            &["memory.recompute=2", "parallel.pipeline=2", GPIPE],
        ],
    ),
    (
        LLAMA,
        &["lora.rank=2", "lora.targets=['q_proj', 'v_proj', 'down_proj']", "lora.dropout=0.2"],
        &[
            &["parallel.data=1"],
            &["parallel.data=2", BLOCK, SHARDED],
            &["parallel.pipeline=2", ZERO_BUBBLE, BLOCK],
        ],
    ),
    (
        GPT,
        &["lora.rank=3", "train.freeze=['*_proj.lora*', 'h.0.*']"],
        &[&["parallel.data=1"], &["parallel.data=4", SHARDED], &["parallel.pipeline=2", BLOCK]],
    ),
    (
        MLP,
        &["lora.rank=2", "lora.alpha=1", "model.activation=gelu", "lora.targets=['1', '3']"],
        &[&["parallel.data=1"], &["parallel.pipeline=5"], &["parallel.data=4", SHARDED], &[BLOCK]],
    ),
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
            &["parallel.pipeline=2", "parallel.data=2"],
            &["parallel.pipeline=4", BLOCK],
        ],
    ),
    (
        CHAT,
        &["data.pack_documents=true", "data.document_mask=true", "lora.rank=2"],
        &[&["parallel.data=1"], &["parallel.data=4", SHARDED], &["parallel.pipeline=2", ZERO_BUBBLE, BLOCK]],
    ),
];

#[test]
fn conversations_keep_the_bits() {
    assert_equal_bits(CHATS);
}

#[test]
fn adapters_keep_the_bits() {
    assert_equal_bits(ADAPTED);
}

#[test]
fn frozen_parameters_keep_the_bits() {
    assert_equal_bits(FROZEN);
}

/// Families with dropout, other heads, and losses in pieces of the vocabulary.
const OPTIONS: &[Row] = &[
    (
        GPT,
        &["model.layers=4", "model.dropout=0.2", "train.steps=3"],
        &[
            &["parallel.data=1"],
            &["parallel.data=2", BLOCK],
            &["parallel.data=4", SHARDED],
            &["parallel.pipeline=2", ZERO_BUBBLE],
            &["parallel.pipeline=2", "parallel.data=2", INTERLEAVED, SHARDED],
        ],
    ),
    (
        GPT,
        &["model.tied=false", "model.biases=false", "model.positions=sinusoidal", "model.dropout=0.1"],
        &[
            &["parallel.data=1"],
            &["parallel.data=4", BLOCK],
            &["parallel.pipeline=2"],
            &["parallel.pipeline=2", "parallel.data=2", SHARDED],
        ],
    ),
    (
        LLAMA,
        &["model.dropout=0.2", "model.key_value_heads=1", "train.steps=3"],
        &[
            &["parallel.data=1"],
            &["parallel.data=2", BLOCK],
            &["parallel.data=4", SHARDED],
            &["parallel.pipeline=2", ZERO_BUBBLE],
            &["parallel.pipeline=2", "parallel.data=2", GPIPE, BLOCK],
        ],
    ),
    // In zero-bubble schedules each half of backward computes the scores once.
    (
        LLAMA,
        &["model.loss_pieces=3", "model.logit_soft_cap=4.0", "train.validation_micro_batches=2"],
        &[
            &["parallel.data=1"],
            &["parallel.data=4", SHARDED],
            &["parallel.pipeline=2", ZERO_BUBBLE],
            &["parallel.pipeline=2", "parallel.data=2", BLOCK],
        ],
    ),
    (
        GPT,
        &["model.loss_pieces=2", "model.dropout=0.1"],
        &[
            &["parallel.data=1"],
            &["parallel.data=2", BLOCK],
            &["parallel.pipeline=2", ZERO_BUBBLE],
            &["parallel.pipeline=2", "parallel.data=2", SHARDED],
        ],
    ),
    (
        GPT,
        &["model.tied=false", "model.loss_pieces=2", "train.freeze=['lm_head.*']", "train.steps=3"],
        &[&["parallel.data=1"], &["parallel.data=2", BLOCK], &["parallel.pipeline=2", ZERO_BUBBLE]],
    ),
    (
        GPT,
        &["model.logit_soft_cap=4.0", "train.steps=3"],
        &[&["parallel.data=1"], &["parallel.data=2"], &["parallel.pipeline=2", ZERO_BUBBLE]],
    ),
];

/// Data of every kind, read ahead and not.
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

#[test]
fn data_of_every_kind_has_equal_bits() {
    assert_equal_bits(SOURCES);
}

#[test]
fn llamas_have_equal_bits() {
    assert_equal_bits(LLAMAS);
}

#[test]
fn options_of_families_have_equal_bits() {
    assert_equal_bits(OPTIONS);
}

/// On a GPU, twice alike and recomputed, in both types.
#[test]
fn options_of_families_have_equal_bits_on_a_gpu() {
    if !gpu() {
        return;
    }
    let table: &[(&str, &[&str])] = &[
        (GPT, &["model.width=128", "model.dropout=0.2"]),
        (GPT, &["model.width=128", "model.tied=false", "model.biases=false", "model.positions=sinusoidal"]),
        (GPT, &["model.width=128", "model.loss_pieces=2", "model.dropout=0.1"]),
        (LLAMA, &["model.width=256", "model.key_value_heads=1", "model.dropout=0.2"]),
        (
            LLAMA,
            &["model.width=256", "model.qk_norm=true", "model.loss_pieces=3", "model.logit_soft_cap=4.0"],
        ),
        (LLAMA, &["model.width=256", "model.tied=true", "model.loss_pieces=2"]),
    ];
    for ((text, options), compute) in table.iter().flat_map(|row| ["f32", "bf16"].map(|c| (row, c))) {
        let compute = format!("precision.compute={compute}");
        let run = |more: &[&str]| {
            let sets = [options, &["train.steps=3", &compute][..], more].concat();
            history_on(DeviceChoice::Cuda, text, &sets)
        };
        let first = run(&[]);
        for more in [&[][..], &[BLOCK], &["memory.recompute=2"]] {
            let other = run(more);
            assert_eq!(first.losses, other.losses, "{options:?} {compute} {more:?}");
            assert_eq!(first.weights, other.weights, "{options:?} {compute} {more:?}");
        }
    }
}

#[test]
fn data_parallel_grids_have_equal_bits() {
    assert_equal_bits(GRIDS);
}

#[test]
fn pipelines_have_equal_bits() {
    assert_equal_bits(STAGES);
}

#[test]
fn recomputation_keeps_the_bits() {
    assert_equal_bits(COMPUTED_AGAIN);
}

/// Asserts that all variants of a row have the losses, weights and validation loss of its first.
fn assert_equal_bits(table: &[Row]) {
    for (row, (text, common, variants)) in table.iter().enumerate() {
        let all = |variant: &[&'static str]| [*common, variant].concat();
        let reference = history(text, &all(variants[0]));
        assert!(reference.losses.iter().all(|loss| f32::from_bits(*loss).is_finite()));
        for variant in &variants[1..] {
            let other = history(text, &all(variant));
            assert_eq!(reference.losses, other.losses, "losses of row {row}, {variant:?}");
            assert_eq!(reference.weights, other.weights, "weights of row {row}, {variant:?}");
            assert_eq!(reference.validation, other.validation, "validation of row {row}, {variant:?}");
        }
    }
}

#[test]
fn keys_that_decide_bits_change_them() {
    let reference = history(GPT, &[]);
    for different in ["train.seed=2", "parallel.lanes=1", "optim.learning_rate=2e-3"] {
        assert_ne!(reference.weights, history(GPT, &[different]).weights, "{different}");
    }
}

#[test]
fn thread_counts_have_equal_bits() {
    let hash = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| history(GPT, &["parallel.data=1"]).weights)
    };
    let one = hash(1);
    assert_eq!(one, hash(2));
    assert_eq!(one, hash(5));
}
