//! Ranks that share layers: parts of weights, rows and statistics that are gathered, and lanes on one rank.

use memory::Category;
use plan::{plan, prepare};
use telemetry::Statistic;
use worker::{DeviceChoice, Placement};

use super::{compare, compare_all, run};
use crate::common::runs::{GPT, LLAMA, config};

const LANES: &str = "parallel.tensor_lanes=4";
const TWO: &str = "parallel.tensor=2";
const FOUR: &str = "parallel.tensor=4";
const BLOCK: &str = "memory.recompute=block";

#[test]
fn plans_of_divided_layers_equal_runs() {
    let gpt: &[&[&str]] = &[
        &[],
        &[TWO],
        &[FOUR, "model.dropout=0.1"],
        &[TWO, BLOCK, "parallel.data=2", "checkpoint.every=1"],
        &[FOUR, "parallel.pipeline=2", "parallel.schedule=zero-bubble"],
        &[TWO, "parallel.data=3", "parallel.zero_stage=2", "model.tied=false"],
        &[TWO, "parallel.data=2", "parallel.zero_stage=3", "memory.preallocate=true"],
        &[TWO, "precision.compute=bf16", "model.width=128", "train.global_batch_size=32"],
        &[FOUR, "precision.compute=f16", "precision.weights=f32", "model.width=128"],
        &[TWO, "optim.state=8bit", "model.width=64", "train.freeze=['h.0.*']"],
    ];
    for more in gpt {
        compare(GPT, &[&[LANES, "model.heads=4", "model.layers=4", "train.steps=2"][..], more].concat());
    }
    let llama = [LANES, "model.key_value_heads=4", "model.qk_norm=true", "train.steps=2"];
    compare_all(&[
        (LLAMA, &[&llama[..], &[TWO, "parallel.pipeline=2"]].concat()),
        (LLAMA, &[&llama[..], &[FOUR, BLOCK, "parallel.data=2", "parallel.zero_stage=3"]].concat()),
        (LLAMA, &[&llama[..], &[TWO, "model.qk_norm_span=all", "model.loss_pieces=2"]].concat()),
        (LLAMA, &[&llama[..], &[FOUR, "model.qk_norm_span=all", "parallel.context_lanes=2", BLOCK]].concat()),
        (
            LLAMA,
            &[&llama[..], &["model.loss_pieces=2", "model.attention_sinks=true", "parallel.pipeline=2"]]
                .concat(),
        ),
        (LLAMA, &[&llama[..], &[TWO, "lora.rank=4", "lora.dropout=0.1"]].concat()),
        (LLAMA, &[&llama[..], &[TWO, "lora.rank=4", BLOCK, "parallel.pipeline=2"]].concat()),
        (LLAMA, &[&llama[..], &[TWO, "model.width=64", "precision.matmul=fp8"]].concat()),
        (LLAMA, &[&llama[..], &["model.width=64", "precision.matmul=fp8", BLOCK]].concat()),
    ]);
}

/// A rank has its part of the weights, of their gradients and state, and of the rows between layers.
#[test]
fn ranks_that_share_layers_share_their_memory() {
    const MODEL: [&str; 6] = [
        "model.width=128",
        "model.heads=4",
        "model.layers=4",
        "train.steps=1",
        "train.micro_batch_size=8",
        "train.global_batch_size=32",
    ];
    let on = |more: &[&str]| run(GPT, &[&MODEL[..], &[LANES], more].concat(), DeviceChoice::Cpu);
    let (alone, shared) = (on(&[]), on(&[FOUR]));
    for rank in &shared.ranks {
        let of = |category| {
            let live = |rank: &telemetry::RankStatistics| rank.get(Statistic::LiveBytes(category));
            (live(rank), live(&alone.ranks[0]))
        };
        for category in [Category::Parameter, Category::OptimizerState] {
            let (part, whole) = of(category);
            assert!(part.abs_diff(whole / 4) < whole / 16, "{category:?}: {part} of {whole}");
        }
        let peak = |rank: &telemetry::RankStatistics| rank.get(Statistic::PeakAllocatedBytes);
        assert!(2 * peak(rank) < peak(&alone.ranks[0]), "{} of {}", peak(rank), peak(&alone.ranks[0]));
    }
}

/// Four ranks train a model that one does not hold within their limit.
#[test]
fn ranks_that_share_layers_hold_what_one_cannot() {
    const MODEL: [&str; 4] = ["model.width=256", "model.heads=4", "model.layers=4", "train.steps=1"];
    let planned = |more: &[&str]| {
        let setup = prepare(config(GPT, &[&MODEL[..], &[LANES], more].concat()), Placement::Cpu).unwrap();
        plan(&setup, 0).unwrap().statistics.peak_reserved()
    };
    let (alone, shared) = (planned(&[]), planned(&[FOUR]));
    let limit = format!("memory.limit_bytes={}", (alone + shared) / 2);
    compare(GPT, &[&MODEL[..], &[LANES, FOUR, &limit]].concat());
    let setup = prepare(config(GPT, &[&MODEL[..], &[LANES, &limit]].concat()), Placement::Cpu).unwrap();
    assert!(plan(&setup, 0).is_err());
}
