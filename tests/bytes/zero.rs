//! ZeRO stages 2 and 3: shards of gradients and weights, buffers of whole buckets and gathered units, and
//! groups of ranks that share state.

use memory::Category;
use telemetry::{RankStatistics, Statistic};
use worker::DeviceChoice;

use super::{compare, compare_all, run};
use crate::common::runs::{GPT, LLAMA, MLP, RESNET};

const ZERO_2: &str = "parallel.zero_stage=2";
const ZERO_3: &str = "parallel.zero_stage=3";
const PAIRS: &str = "parallel.shard=2";
const BLOCK: &str = "memory.recompute=block";

/// Even and uneven lanes, ends of buckets, prefetches, groups, pipelines, and lanes of several micro-batches.
#[test]
fn plans_of_shards_equal_runs() {
    let table: &[&[&str]] = &[
        &["parallel.data=2", ZERO_2],
        &["parallel.data=3", ZERO_2, "parallel.bucket_bytes=512"],
        &["parallel.data=4", ZERO_2, PAIRS, "parallel.pipeline=2", "parallel.schedule=zero-bubble"],
        &["parallel.data=2", ZERO_2, "train.global_batch_size=32", "train.validation_micro_batches=1"],
        &["parallel.data=2", ZERO_3, "checkpoint.every=1"],
        &["parallel.data=3", ZERO_3, "parallel.prefetch=0", "parallel.pipeline=2"],
        &["parallel.data=4", ZERO_3, "parallel.prefetch=64", BLOCK],
        &["parallel.data=4", ZERO_3, PAIRS, "parallel.prefetch=2", "train.validation_micro_batches=1"],
        &["parallel.data=2", ZERO_3, "train.global_batch_size=32", "memory.preallocate=true"],
        &["parallel.data=3", ZERO_3, "parallel.reduction=nccl"],
    ];
    for more in table {
        compare(GPT, &[&["model.layers=4", "train.steps=2"][..], more].concat());
    }
}

/// Precisions, state, parts that are trained, and families.
#[test]
fn plans_of_features_in_shards_equal_runs() {
    let table: &[(&str, &[&str])] = &[
        (GPT, &["precision.compute=bf16", "model.width=64", "parallel.data=3", ZERO_2]),
        (GPT, &["precision.compute=f16", "model.width=64", "parallel.data=4", ZERO_3, PAIRS]),
        (
            GPT,
            &["precision.compute=bf16", "precision.weights=f32", "model.width=64", "parallel.data=2", ZERO_3],
        ),
        (GPT, &["precision.matmul=fp8", "parallel.data=2", ZERO_3]),
        (GPT, &["optim.state=8bit", "model.width=64", "parallel.data=3", ZERO_3]),
        (GPT, &["train.freeze=['w?e.*', 'h.0.*', '*.bias']", "parallel.data=3", ZERO_3]),
        (GPT, &["model.tied=false", "model.dropout=0.1", "parallel.data=2", ZERO_3]),
        (LLAMA, &["lora.rank=4", "parallel.data=2", ZERO_3]),
        (LLAMA, &["model.tied=true", "model.loss_pieces=3", "parallel.data=3", ZERO_2]),
        (MLP, &["optim.kind=adamw", "parallel.data=3", ZERO_3]),
        (RESNET, &["parallel.data=3", ZERO_3]),
        (RESNET, &["parallel.data=4", ZERO_2, PAIRS, BLOCK]),
    ];
    let table: Vec<_> =
        table.iter().map(|(text, more)| (*text, [*more, &["train.steps=2"]].concat())).collect();
    compare_all(&table.iter().map(|(text, more)| (*text, &more[..])).collect::<Vec<_>>());
}

/// Each stage divides what it names by the ranks that share it.
#[test]
fn each_stage_divides_more_of_the_state() {
    const MODEL: [&str; 4] =
        ["model.width=128", "model.layers=6", "train.steps=1", "parallel.bucket_bytes=100000"];
    let live = |ran: &RankStatistics, category| ran.get(Statistic::LiveBytes(category));
    let on = |more: &[&str]| run(GPT, &[&MODEL[..], &["parallel.data=4"], more].concat(), DeviceChoice::Cpu);
    let stages = ["0", "1", "2", "3"].map(|stage| on(&[&format!("parallel.zero_stage={stage}")]));
    let pairs = on(&[ZERO_3, PAIRS]);
    for rank in 0..4 {
        let of = |category| stages.each_ref().map(|report| live(&report.ranks[rank], category));
        let is_quarter = |part: u64, whole: u64| part.abs_diff(whole / 4) < whole / 16;
        let [whole, of_1, of_2, of_3] = of(Category::OptimizerState);
        assert!([of_1, of_2, of_3].iter().all(|part| is_quarter(*part, whole)), "state: {of_1} of {whole}");
        // Besides shards, buffers of two buckets, which at stage 3 are units of weights.
        let [whole, of_1, of_2, of_3] = of(Category::Gradient);
        assert!(of_1 == whole && 2 * of_2 < whole && 3 * of_3 < 2 * whole, "{of_2} {of_3} of {whole}");
        let [whole, of_1, of_2, of_3] = of(Category::Parameter);
        assert!(of_1 == whole && of_2 == whole && is_quarter(of_3, whole), "weights: {of_3} of {whole}");
        // Half of it in groups of two ranks.
        for category in [Category::Parameter, Category::OptimizerState] {
            let (whole, half) = (of(category)[0], live(&pairs.ranks[rank], category));
            assert!(half.abs_diff(whole / 2) < whole / 8, "{category:?}: {half} of {whole}");
        }
    }
}
