//! Ranks that share sequences: pieces, and keys and values that are gathered.

use memory::Category;
use plan::{plan, prepare};
use telemetry::{RankStatistics, Statistic};
use worker::{DeviceChoice, Placement};

use super::{compare, compare_all, run};
use crate::common::runs::{GPT, LLAMA, config};

const PIECES: &str = "parallel.context_lanes=4";
const TWO: &str = "parallel.context=2";
const TENSOR: &str = "parallel.tensor=2";
const BLOCK: &str = "memory.recompute=block";

#[test]
fn plans_of_divided_sequences_equal_runs() {
    let gpt: &[&[&str]] = &[
        &[],
        &[TWO],
        &[TWO, "model.dropout=0.1"],
        &[TWO, BLOCK, "parallel.data=2", "checkpoint.every=1"],
        &[TWO, "parallel.pipeline=2", "parallel.schedule=zero-bubble"],
        &[TWO, "parallel.data=3", "parallel.zero_stage=2", "model.tied=false"],
        &[TWO, "parallel.data=2", "parallel.zero_stage=3", "memory.preallocate=true"],
        &[TWO, "precision.compute=bf16", "model.width=128", "train.global_batch_size=32"],
        &[TWO, "precision.compute=f16", "precision.weights=f32", "model.width=128"],
        &[TWO, "optim.state=8bit", "model.width=64", "train.freeze=['h.0.*']"],
        &[TWO, "data.separator=10", "data.document_mask=true"],
        &[TWO, "precision.matmul=fp8", "model.width=64"],
        &[TWO, "parallel.zero_stage=1"],
        &[TWO, "parallel.zero_stage=3", "parallel.pipeline=2"],
    ];
    for more in gpt {
        compare(GPT, &[&[PIECES, "model.layers=4", "train.steps=2"][..], more].concat());
    }
    let llama = [PIECES, "parallel.tensor_lanes=2", "model.qk_norm=true", "train.steps=2"];
    compare_all(&[
        (LLAMA, &[&llama[..], &[TWO, TENSOR, "parallel.pipeline=2"]].concat()),
        (LLAMA, &[&llama[..], &[TWO, TENSOR, "model.attention_sinks=true"]].concat()),
        (LLAMA, &[&llama[..], &[TWO, TENSOR, BLOCK, "parallel.data=2", "parallel.zero_stage=3"]].concat()),
    ]);
}

/// From ZeRO stage 1 on, ranks that share sequences share state as data-parallel ranks do.
#[test]
fn ranks_that_share_sequences_share_their_state() {
    let on = |more: &[&str]| {
        let settings = ["model.width=128", "model.layers=4", "train.steps=1", PIECES];
        run(GPT, &[&settings[..], more].concat(), DeviceChoice::Cpu)
    };
    let alone = on(&[]);
    for (stage, category) in [(1, Category::OptimizerState), (3, Category::Parameter)] {
        let shared = on(&[TWO, &format!("parallel.zero_stage={stage}")]);
        for rank in &shared.ranks {
            let live = |rank: &RankStatistics| rank.get(Statistic::LiveBytes(category));
            let (part, whole) = (live(rank), live(&alone.ranks[0]));
            assert!(part < whole * 5 / 8, "stage {stage}, {category:?}: {part} of {whole}");
        }
    }
}

fn strs(settings: &[String]) -> Vec<&str> {
    settings.iter().map(String::as_str).collect()
}

/// Four ranks train on a context that one does not hold within their limit.
#[test]
fn ranks_that_share_sequences_hold_a_context_that_one_cannot() {
    const MODEL: [&str; 10] = [
        "model.context=32768",
        "model.width=16",
        "model.heads=1",
        "model.layers=1",
        "model.vocabulary=256",
        "train.steps=1",
        "train.micro_batch_size=1",
        "train.global_batch_size=1",
        "train.validation_micro_batches=1",
        "parallel.context_lanes=8",
    ];
    const FOUR: &str = "parallel.context=4";
    let settings = |more: &[&str]| -> Vec<String> {
        let data = ["parallel.lanes=1", "data.paths=['crates/*/src/*.rs']"];
        MODEL.iter().chain(&data).chain(more).map(ToString::to_string).collect()
    };
    let planned = |more: &[&str]| {
        let setup = prepare(config(GPT, &strs(&settings(more))), Placement::Cpu).unwrap();
        plan(&setup, 0).unwrap().statistics.peak_reserved()
    };
    let (alone, shared) = (planned(&[]), planned(&[FOUR]));
    assert!(3 * shared < alone, "{shared} of {alone}");
    let limit = format!("memory.limit_bytes={}", (alone + shared) / 2);
    compare(GPT, &strs(&settings(&[FOUR, &limit])));
    let setup = prepare(config(GPT, &strs(&settings(&[&limit]))), Placement::Cpu).unwrap();
    assert!(plan(&setup, 0).is_err());
}
