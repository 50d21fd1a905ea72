//! Tests of models with layers that have a state over the sequence.

use super::{
    BLOCK, INTERLEAVED, LANES, ONCE, PAIR, PAIRS, Row, SHARDED, ZERO_2, ZERO_3, ZERO_BUBBLE, check,
    check_on_devices,
};
use crate::common::runs::{LLAMA, SINGLE_BRANCHES};

/// Short convolutions in three of four layers.
const CONVOLUTIONS: &[&str] = &[
    "model.layer_types=['convolution', 'convolution', 'full_attention', 'convolution']",
    "model.convolution_bias=true",
    "model.qk_norm=true",
    "model.tied=true",
    "train.steps=3",
];
/// State spaces in three of four layers, with groups and limits.
const STATE_SPACES: &[&str] = &[
    "model.layer_types=['state_space', 'full_attention', 'state_space', 'state_space']",
    "model.state_heads=4",
    "model.state_head_width=6",
    "model.state_width=5",
    "model.state_groups=2",
    "model.state_norm_groups=2",
    "model.state_least_step=0.01",
    "model.state_largest_step=2.0",
    "model.rope_layers=[0]",
    "train.steps=3",
];
/// Groups of heads, and of the columns of their norm, that two or four lanes share.
pub(super) const SHARED_GROUPS: &[&str] = &[
    "model.layers=2",
    "model.layer_types=['state_space', 'attention_and_state_space']",
    "model.key_value_heads=4",
    "model.state_heads=8",
    "model.state_head_width=6",
    "model.state_width=8",
    "model.state_scales=[0.9, 0.8, 0.7, 0.6, 0.5]",
    "model.rope_layers=[0]",
    "train.steps=2",
];
pub(super) const ONE_GROUP: &[&str] = &["model.state_groups=1", "model.state_norm_groups=1"];
pub(super) const TWO_GROUPS: &[&str] =
    &["model.state_groups=2", "model.state_norm_groups=2", "model.state_norm_first=true"];
const TWO_LANES: &[&str] = &["parallel.tensor_lanes=2"];
const PIECES: &str = "parallel.context_lanes=4";
const CONTEXT: &str = "parallel.context=2";
const DOCUMENTS: [&str; 2] = ["data.separator=10", "data.document_mask=true"];

#[test]
fn recurrent_layers_have_equal_bits_and_planned_bytes() {
    let grids: &[&[&str]] = &[
        &["parallel.data=1"],
        &["parallel.data=2", SHARDED, BLOCK],
        &["parallel.data=4", ZERO_3, PAIRS],
        &["parallel.pipeline=2", "parallel.data=2", INTERLEAVED, ZERO_2],
        &["parallel.pipeline=2", ZERO_BUBBLE],
    ];
    let divided: &[&[&str]] = &[
        &["parallel.data=1"],
        &["parallel.tensor=2", "parallel.data=2", ZERO_3],
        &["parallel.tensor=2", "parallel.pipeline=2", BLOCK],
    ];
    let [convolutions, states] = [CONVOLUTIONS, STATE_SPACES].map(|options| [options, TWO_LANES].concat());
    let rows: [Row; 4] = [
        (LLAMA, CONVOLUTIONS, grids),
        (LLAMA, STATE_SPACES, grids),
        (LLAMA, &convolutions, divided),
        (LLAMA, &states, divided),
    ];
    check_on_devices(&rows);
}

#[test]
fn lanes_that_share_groups_have_equal_bits_and_planned_bytes() {
    const TENSOR: &str = "parallel.tensor=2";
    const FOUR: &str = "parallel.tensor=4";
    let [one, two] = [ONE_GROUP, TWO_GROUPS].map(|groups| [SHARED_GROUPS, groups, &[LANES]].concat());
    let pieces = [&two[..], &[PIECES]].concat();
    let half = [&two[..], &["precision.compute=bf16", "precision.weights=f32"]].concat();
    let adapted = [&one[..], &["lora.rank=2", "lora.targets=['in_proj', 'out_proj']"]].concat();
    let fp8 = [
        &one[..],
        &["precision.compute=bf16", "precision.matmul=fp8", "precision.fp8_layers=['*.mamba.*']"],
        &["model.state_heads=64", "model.state_head_width=4", "model.state_width=64"],
    ];
    check_on_devices(&[
        (LLAMA, &one, &[&[], &[TENSOR, PAIR, ZERO_3, BLOCK], &[FOUR, "parallel.pipeline=2", ZERO_BUBBLE]]),
        (LLAMA, &two, &[&[], &[FOUR, PAIR, SHARDED], &[TENSOR, "parallel.pipeline=2", ZERO_2]]),
        (LLAMA, &pieces, &[&[], &[CONTEXT, TENSOR, ZERO_3, BLOCK]]),
        (LLAMA, &half, &[&[], &[TENSOR, PAIR]]),
        (LLAMA, &adapted, &[&[], &[TENSOR]]),
        (LLAMA, &fp8.concat(), &[&[], &[TENSOR]]),
    ]);
}

/// Settings of adapters of experts, and of FP8 in layers without a gate.
const ADAPTED: &[&str] = &["lora.rank=2", "lora.targets=['all-linear']"];
const FP8: &[&str] = &[
    "precision.compute=bf16",
    "precision.matmul=fp8",
    "precision.fp8_layers=['*.mlp.*']",
    "model.head_width=32",
    "model.expert_width=32",
];

#[test]
fn layers_of_one_branch_have_equal_bits_and_planned_bytes() {
    let grids: &[&[&str]] = &[
        &[],
        &["parallel.data=2", SHARDED, BLOCK],
        &["parallel.data=4", ZERO_3, PAIRS],
        &["parallel.pipeline=2", "parallel.data=2", INTERLEAVED, ZERO_2],
        &["parallel.pipeline=4", ZERO_BUBBLE],
    ];
    let divided: &[&[&str]] = &[
        &[],
        &["parallel.tensor=2", "parallel.data=2", ZERO_3],
        &["parallel.tensor=2", "parallel.pipeline=2", BLOCK],
    ];
    check(&[
        (LLAMA, SINGLE_BRANCHES, grids),
        (LLAMA, &[SINGLE_BRANCHES, TWO_LANES].concat(), divided),
        (LLAMA, &[SINGLE_BRANCHES, ADAPTED].concat(), &grids[..2]),
        (LLAMA, &[SINGLE_BRANCHES, FP8].concat(), ONCE),
        (LLAMA, &[SINGLE_BRANCHES, &[PIECES]].concat(), &[&[], &[CONTEXT, BLOCK]]),
    ]);
}

#[test]
fn recurrent_layers_of_context_ranks_have_equal_bits_and_planned_bytes() {
    let grids: &[&[&str]] = &[
        &[],
        &[CONTEXT],
        &[CONTEXT, PAIR, ZERO_3, BLOCK],
        &[CONTEXT, "parallel.pipeline=2", ZERO_BUBBLE],
        &[CONTEXT, "parallel.tensor=2", SHARDED],
    ];
    let plain: &[&[&str]] = &[&[], &[CONTEXT], &[CONTEXT, BLOCK]];
    let four: &[&[&str]] = &[&[], &["parallel.context=4", PAIR]];
    let divided = |options: &[&'static str]| [options, TWO_LANES, &[PIECES, "train.steps=2"]].concat();
    let packed = |options: &[&'static str]| [options, &DOCUMENTS, &[PIECES, "lora.rank=2"]].concat();
    let eight = |options: &[&'static str]| [options, &["parallel.context_lanes=8", "train.steps=2"]].concat();
    let [convolutions, states] = [CONVOLUTIONS, STATE_SPACES].map(divided);
    let packed = [CONVOLUTIONS, STATE_SPACES].map(packed);
    let half = [STATE_SPACES, &[PIECES, "precision.compute=bf16", "precision.weights=f32"]].concat();
    let eight = eight(STATE_SPACES);
    check_on_devices(&[
        (LLAMA, &convolutions, grids),
        (LLAMA, &states, grids),
        (LLAMA, &packed[0], plain),
        (LLAMA, &packed[1], plain),
        (LLAMA, &half, plain),
        (LLAMA, &eight, four),
    ]);
}
