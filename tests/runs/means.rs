//! Tests that a step's loss and gradient and a validation's loss are means over targets, independent of how
//! sequences are divided into micro-batches.

use serde_json::Value;
use worker::DeviceChoice;

use super::alone;
use crate::common::devices::gpu;
use crate::common::runs::{CHAT, GPT, LLAMA, PACKED, PREFERENCE, config, train_in};

/// Settings of a mixture of experts whose router losses exclude padding.
const MIXTURE: [&str; 6] = [
    "model.kind=llama",
    "model.experts=4",
    "model.expert_width=32",
    "model.router_correction=true",
    "train.router_z_loss=0.5",
    "train.correction_rate=0.01",
];

/// Returns the loss and gradient norm of the first step, and the validation loss after it, for 8 sequences or
/// pairs in micro-batches of `micro_batch`.
fn means(device: DeviceChoice, text: &str, sets: &[&str], micro_batch: usize) -> [f64; 3] {
    let _alone = alone(device);
    let directory = tempfile::tempdir().unwrap();
    let cut = [
        format!("train.micro_batch_size={micro_batch}"),
        format!("train.validation_micro_batches={}", 8 / micro_batch),
    ];
    let common =
        ["train.global_batch_size=8", "train.steps=1", "parallel.lanes=1", "optim.learning_rate=1e-9"];
    let cut: Vec<&str> = cut.iter().map(String::as_str).collect();
    let sets = [&common[..], &cut, sets].concat();
    let report = train_in(directory.path(), config(text, &sets), device).unwrap();
    let metrics = std::fs::read_to_string(directory.path().join("metrics.jsonl")).unwrap();
    let first: Value = serde_json::from_str(metrics.lines().next().unwrap()).unwrap();
    let value = |key: &str| first[key].as_f64().unwrap();
    [value("loss"), value("gradient_norm"), report.validation_loss.unwrap()]
}

fn are_close(one: [f64; 3], other: [f64; 3], most: f64) -> bool {
    one.iter().zip(other).all(|(one, other)| (one - other).abs() <= most * one.abs())
}

#[test]
fn a_mean_over_targets_does_not_depend_on_micro_batches() {
    let packed = ["data.pack_documents=true", "data.document_mask=true"];
    let table: &[(&str, &[&str])] = &[
        (CHAT, &[]),
        (CHAT, &packed),
        (CHAT, &["data.group_by_length=true"]),
        (CHAT, &["parallel.tensor_lanes=2", "model.loss_pieces=3", "model.tied=false"]),
        (CHAT, &["parallel.context_lanes=4"]),
        (CHAT, &MIXTURE),
        (LLAMA, &PACKED),
        (GPT, &["data.ignore=101"]),
        (PREFERENCE, &["preference.loss=orpo"]),
        (PREFERENCE, &["preference.loss=dpo"]),
        (PREFERENCE, &["preference.loss=dpo", "data.group_by_length=true"]),
    ];
    let devices = [Some(DeviceChoice::Cpu), gpu().then_some(DeviceChoice::Cuda)];
    for (device, (text, sets)) in
        devices.into_iter().flatten().flat_map(|device| table.iter().map(move |row| (device, row)))
    {
        let whole = means(device, text, sets, 8);
        for micro_batch in [1, 2, 4] {
            let cut = means(device, text, sets, micro_batch);
            assert!(are_close(whole, cut, 4e-6), "{sets:?}, {micro_batch}: {cut:?} instead of {whole:?}");
        }
    }
}

#[test]
fn a_mean_of_micro_batches_gives_targets_of_short_answers_more_weight() {
    let old = "train.loss_mean=micro-batches";
    for (text, sets) in [(CHAT, &[old][..]), (PREFERENCE, &["preference.loss=orpo", old])] {
        let means = |sets: &[&str], micro_batch| means(DeviceChoice::Cpu, text, sets, micro_batch);
        let whole = means(sets, 8);
        let cut = means(sets, 1);
        assert!(!are_close(whole, cut, 1e-4), "{cut:?} and {whole:?}");
        // A single micro-batch has a single mean.
        assert!(are_close(whole, means(&sets[..sets.len() - 1], 8), 1e-6));
    }
}
