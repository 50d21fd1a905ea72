//! Runs whose parameters have different settings of the optimizer: equal bits on every grid, planned bytes,
//! and updates of each group by its own settings.

use super::*;
use crate::common::runs::{LLAMA, MLP, RESNET};

const TABLES: &str = "optim.groups=[{match='wte.*', learning_rate=0.25}, {match='*.bias', weight_decay=0.3, \
                      beta1=0.5}, {match=['h.0.*', 'ln_f.*'], name='first', beta2=0.5}]";
const KINDS: &str = "optim.groups=[{match='*norm*', kind='sgd', learning_rate=2}, {match='*.mlp.*', \
                     kind='lion', learning_rate=0.1, weight_decay=1}]";

const GROUPS: &[Row<'_>] = &[
    (
        GPT,
        &[TABLES, "optim.clip_norm=0.1", "model.layers=4"],
        &[
            &["parallel.data=1"],
            &["parallel.data=2"],
            &["parallel.data=4", SHARDED],
            &["parallel.data=2", ZERO_2],
            &["parallel.data=4", ZERO_3, PAIRS],
            &[PIPELINE, "parallel.data=2", ZERO_BUBBLE, ZERO_3],
            &[PIPELINE, INTERLEAVED],
            &["optim.offload=true"],
            &["optim.offload=true", "memory.offload_weights=true", "parallel.data=2"],
            &[BLOCK],
        ],
    ),
    (
        LLAMA,
        &[KINDS, LANES, "model.key_value_heads=4", "model.width=64"],
        &[
            &["parallel.data=1"],
            &["parallel.tensor=2"],
            &["parallel.tensor=4", "parallel.data=2", SHARDED],
            &["parallel.tensor=2", PIPELINE],
            &["optim.offload=true", "parallel.data=2", ZERO_3],
        ],
    ),
    // States of one byte, and rounded to bf16.
    (
        LLAMA,
        &[KINDS, "optim.state=8bit", "model.width=64"],
        &[&["parallel.data=1"], &["parallel.data=2", SHARDED], &[PIPELINE, "parallel.data=2", ZERO_3]],
    ),
    (
        LLAMA,
        &[KINDS, "optim.state=bf16", "precision.compute=bf16"],
        &[&["parallel.data=1"], &["parallel.data=4", SHARDED], &[PIPELINE, ZERO_3, "parallel.data=2"]],
    ),
    (
        LLAMA,
        &[
            "model.experts=4",
            "optim.groups=[{match='*.experts.*', learning_rate=0.5}, {match='*', beta1=0.8}]",
        ],
        &[&["parallel.data=1"], &["parallel.data=2", ZERO_3]],
    ),
    (
        MLP,
        &["optim.groups=[{match='0.*', kind='adamw', learning_rate=0.01}]"],
        &[&["parallel.data=1"], &["parallel.pipeline=5"], &["parallel.data=4", SHARDED]],
    ),
    (
        RESNET,
        &["optim.groups=[{match='fc.*', learning_rate=10}]"],
        &[&["parallel.data=1"], &["parallel.data=2", SHARDED], &[PIPELINE]],
    ),
    (
        LLAMA,
        &["lora.rank=4", "lora.b_learning_rate=4", "optim.groups=[{match='*qkv_proj*', learning_rate=0.5}]"],
        &[&["parallel.data=1"], &["parallel.data=2", ZERO_3], &[PIPELINE]],
    ),
];

#[test]
fn groups_have_equal_bits_on_every_grid() {
    check_on_devices(GROUPS);
}

/// Groups that change nothing have the bits of a run without groups, and others have other bits.
#[test]
fn groups_have_the_bits_of_equal_settings() {
    let weights = |sets: &[&str]| run(GPT, sets).weights.clone();
    let plain = weights(&[]);
    for same in [
        "optim.groups=[{match='*', name='all'}]",
        "optim.groups=[{match='wte.*', learning_rate=1}, {match='*.bias'}]",
        "optim.groups=[{match='*.weight', kind='adamw', beta1=0.9}]",
    ] {
        assert_eq!(weights(&[same]), plain, "{same}");
    }
    // A weight decay of a group also applies to norms and biases, as `decay_norms` does.
    let decayed = "optim.groups=[{match='*', weight_decay=0.1}]";
    assert_eq!(weights(&[decayed]), weights(&["optim.decay_norms=true"]));
    let lion = ["optim.kind=lion", "optim.beta2=0.9"];
    assert_eq!(weights(&["optim.groups=[{match='*', kind='lion', beta2=0.9}]"]), weights(&lion));
    let factor = "optim.groups=[{match='*', learning_rate=0.5}]";
    let halved = ["optim.learning_rate=5e-4", "optim.min_learning_rate=5e-5"];
    assert_eq!(weights(&[factor, "optim.learning_rate=1e-3"]), weights(&halved));
    let different = [TABLES, "optim.groups=[{match='h.0.*', beta2=0.5}]", decayed, factor];
    for (index, set) in different.iter().enumerate() {
        assert_ne!(weights(&[set]), plain, "{set}");
        assert!(different[..index].iter().all(|other| weights(&[other]) != weights(&[set])), "{set}");
    }
}

/// Returns `gradient_norm` and `gradient_norms` of every step, as they are written.
fn norms(sets: &[&str]) -> Vec<(String, String)> {
    let directory = tempfile::tempdir().unwrap();
    let run_dir = directory.path().join("run");
    train_in(&run_dir, config(GPT, sets), DeviceChoice::Cpu).unwrap();
    let lines = std::fs::read_to_string(run_dir.join("metrics.jsonl")).unwrap();
    let norms = |line: &str| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        (line["gradient_norm"].to_string(), line["gradient_norms"].to_string())
    };
    lines.lines().map(norms).collect()
}

/// Norms of groups have the same bits on every grid, and their squares add up to that of the whole.
#[test]
fn gradient_norms_of_groups_are_reported() {
    let reference = norms(&[TABLES]);
    let numbers: serde_json::Value = serde_json::from_str(&reference[0].1).unwrap();
    let names: Vec<_> = numbers.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(names, ["wte.*", "*.bias", "first", "default", "norms and biases"]);
    for (whole, groups) in &reference {
        let groups: BTreeMap<String, f64> = serde_json::from_str(groups).unwrap();
        let sum: f64 = groups.values().map(|norm| norm * norm).sum();
        let whole: f64 = whole.parse().unwrap();
        assert!((sum.sqrt() / whole - 1.0).abs() < 1e-5, "{groups:?} and {whole}");
        assert!(groups.values().all(|norm| *norm > 0.0), "{groups:?}");
    }
    for grid in [
        &["parallel.data=2"][..],
        &["parallel.data=4", SHARDED],
        &[PIPELINE, "parallel.data=2", ZERO_3],
        &["optim.offload=true"],
    ] {
        assert_eq!(norms(&[&[TABLES], grid].concat()), reference, "{grid:?}");
    }
    // One group has all parameters, or there are no groups.
    for sets in [&["optim.groups=[{match='*'}]"][..], &[]] {
        assert!(norms(sets).iter().all(|(_, groups)| groups == "null"), "{sets:?}");
    }
}
