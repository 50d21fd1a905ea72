//! Tests that losses of low precisions stay near f32's, and that their bits are equal on every grid of GPUs
//! or of ranks that share one.

use run::RunOptions;
use worker::DeviceChoice;

use super::{BLOCK, ONCE, Row, SHARDED, ZERO_BUBBLE, alone, check, check_on, run};
use crate::common::devices::{gpu, own_gpus};
use crate::common::runs::{GPT, LLAMA, MLP, RESNET, config};

const BF16: &str = "precision.compute=bf16";
const F16: &str = "precision.compute=f16";
const FP8: &str = "precision.matmul=fp8";
const ROWWISE: &str = "precision.fp8_recipe=rowwise";

/// Returns the settings with which two ranks each have a GPU, or share the only one.
fn sharing() -> &'static [&'static str] {
    if own_gpus() >= 2 { &[] } else { &["parallel.ranks_per_device=2"] }
}

/// Grids of two ranks, preceded by a single rank.
const TWO_RANKS: &[&[&str]] = &[
    &["parallel.data=1"],
    &["parallel.data=2"],
    &["parallel.data=2", SHARDED, BLOCK],
    &["parallel.pipeline=2", ZERO_BUBBLE],
];
const ROWS: &[Row] = &[
    (GPT, &["model.width=128", BF16, FP8], TWO_RANKS),
    (LLAMA, &["model.width=256", BF16, FP8, ROWWISE], TWO_RANKS),
    (LLAMA, &["model.width=256", BF16, FP8, "model.qk_norm=true", "optim.state=8bit"], TWO_RANKS),
    (GPT, &["model.width=128", F16, "model.dropout=0.1"], TWO_RANKS),
    (GPT, &["model.width=128", BF16, "precision.weights=f32"], TWO_RANKS),
    (GPT, &["model.width=128", F16, "precision.weights=f32", "optim.state=8bit"], TWO_RANKS),
    (GPT, &["model.width=128", BF16, "optim.kind=lion"], TWO_RANKS),
    (GPT, &["model.width=128", BF16, "optim.state=bf16"], TWO_RANKS),
    (RESNET, &[BF16], &[&["parallel.data=1"], &["parallel.data=2"], &["parallel.pipeline=2"]]),
];

#[test]
fn precisions_have_equal_bits_on_two_gpu_ranks() {
    if gpu() {
        check_on(DeviceChoice::Cuda, ROWS, own_gpus() < 2);
    }
}

#[test]
fn precisions_resume_with_equal_bits_on_another_grid_of_gpu_ranks() {
    if !gpu() {
        return;
    }
    for (text, common, _) in ROWS {
        let directory = tempfile::tempdir().unwrap();
        let train = |run: &str, resume: bool, more: &[&str]| {
            let options = RunOptions {
                device: DeviceChoice::Cuda,
                run_dir: Some(directory.path().join(run)),
                resume,
                quiet: true,
                ..RunOptions::default()
            };
            let _alone = alone(options.device);
            run::train(config(text, &[*common, more, sharing()].concat()), options).unwrap().summary
        };
        let whole = train("whole", false, &["train.steps=4", "parallel.data=1"]);
        let sets = ["train.steps=4", "checkpoint.every=2", "checkpoint.minutes=0"];
        train("cut", false, &[&sets[..], &["parallel.pipeline=2"]].concat());
        std::fs::remove_dir_all(directory.path().join("cut/checkpoints/step-000004")).unwrap();
        let resumed = train("cut", true, &[&sets[..], &["parallel.data=2", SHARDED]].concat());
        assert_eq!(resumed.more["resumed_after_step"], 2, "{common:?}");
        assert_eq!(whole.weights_sha256, resumed.weights_sha256, "{common:?}");
    }
}

#[test]
fn low_precisions_learn_as_f32_does() {
    let run = |more: &[&str]| {
        run(GPT, &[&["model.width=64", "train.steps=12", "optim.learning_rate=3e-3"][..], more].concat())
    };
    let reference = run(&[]);
    let single = reference.losses();
    assert!(single[11] < single[0] - 0.5, "{single:?}");
    let table: [&[&str]; 6] = [
        &["precision.compute=bf16"],
        &["precision.compute=bf16", "precision.weights=f32"],
        &["precision.compute=f16", "precision.weights=f32", "precision.scaler.init_scale=1024"],
        &["optim.state=bf16"],
        &["optim.state=8bit"],
        &["precision.compute=bf16", "precision.weights=f32", "optim.state=8bit"],
    ];
    let mut all = vec![reference];
    for more in table {
        let result = run(more);
        let off = result.losses().iter().zip(&single).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(off < 0.03, "{more:?}: off by {off}");
        assert!(all.iter().all(|other| other.weights != result.weights), "{more:?} changes nothing");
        all.push(result);
    }
}

/// Covers half precision: copies of weights, gradients in both dtypes, pipelines, and recomputation.
#[test]
fn half_precisions_keep_their_plans() {
    for compute in ["bf16", "f16"] {
        let (compute, gradients) =
            (format!("precision.compute={compute}"), format!("precision.gradients={compute}"));
        let common = ["model.width=64", "train.steps=2", &compute];
        let with = |more: &[&'static str]| [&common[..], more].concat();
        check(&[
            (
                GPT,
                &common,
                &[&["parallel.data=2"], &["parallel.pipeline=2", "parallel.data=2", SHARDED, BLOCK]],
            ),
            (GPT, &with(&["parallel.data=4", SHARDED, "parallel.bucket_bytes=512"]), &[&[&gradients]]),
            (GPT, &with(&["parallel.pipeline=2", ZERO_BUBBLE, "optim.state=bf16"]), ONCE),
            (GPT, &with(&["optim.kind=sgd", "checkpoint.every=2", "model.loss_pieces=2"]), &[&[&gradients]]),
            (MLP, &["parallel.data=2", &compute, &gradients], ONCE),
        ]);
    }
}

/// Covers f32 weights with half-precision operators, which cast weights and activations.
#[test]
fn autocast_keeps_its_plans() {
    let table: [(&str, &[&str]); 5] = [
        (GPT, &["model.width=64", "parallel.data=2", SHARDED]),
        (GPT, &["model.width=64", "parallel.pipeline=2", BLOCK]),
        (GPT, &["model.width=64", "model.loss_pieces=2", "lora.rank=2", "checkpoint.every=2"]),
        (LLAMA, &["model.width=128", "parallel.pipeline=2", ZERO_BUBBLE]),
        (RESNET, &["parallel.data=2", "train.steps=2"]),
    ];
    for (number, (text, more)) in table.into_iter().enumerate() {
        let compute = [BF16, F16][number % 2];
        check(&[(text, &[&["train.steps=2", "precision.weights=f32", compute], more].concat(), ONCE)]);
    }
}

/// Covers optimizer state in bf16 and in 8 bits.
#[test]
fn narrow_state_keeps_its_plans() {
    for state in ["optim.state=bf16", "optim.state=8bit"] {
        check(&[
            (GPT, &["train.steps=2", "parallel.data=2", "checkpoint.every=1", state], ONCE),
            (GPT, &["train.steps=2", "model.width=64", "parallel.data=4", SHARDED, BF16, state], ONCE),
            (MLP, &["parallel.pipeline=2", state], ONCE),
        ]);
    }
}
