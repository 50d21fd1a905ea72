//! Tests of the bytes that ranks share, and of models that one rank cannot hold.

use device::Category;
use plan::{DeviceRanks, PlanDevice, plan, prepare};
use telemetry::{RankStatistics, Statistic};
use worker::{DeviceChoice, Placement};

use super::{LANES, ONCE, PAIRS, SHARDED, ZERO_2, ZERO_3, check, run};
use crate::common::runs::{GPT, config, train_in};

const PIECES: &str = "parallel.context_lanes=4";

#[test]
fn zero_stage_1_divides_only_the_moments() {
    // Every parameter has a multiple of 128 elements, so no tensor is rounded up.
    const MODEL: [&str; 4] =
        ["model.width=128", "model.context=64", "train.steps=1", "parallel.bucket_bytes=1000000"];
    let run_with = |data: &str, more: &[&str]| run(GPT, &[&MODEL[..], &[data], more].concat());
    let live = |ran: &RankStatistics, category| ran.get(Statistic::LiveBytes(category));
    for ranks in [2, 4] {
        let data = format!("parallel.data={ranks}");
        let whole = run_with(&data, &[]);
        let divided = run_with(&data, &[SHARDED]);
        let whole = &whole.ranks;
        let divided = &divided.ranks;
        let elements = live(&whole[0], Category::Parameter) / 4;
        let state = |ran: &RankStatistics| live(ran, Category::OptimizerState);
        // Besides two moments: the norm's sums (one per 4096 elements) and its result, equal on every rank.
        let norm = state(&whole[0]) - 8 * elements;
        assert_eq!(norm, (elements / 4096 * 4).next_multiple_of(512) + 512);
        assert_eq!(divided.iter().map(state).sum::<u64>(), 8 * elements + ranks * norm);
        // Bytes of buckets besides gradients; the token embedding has two gradients.
        let bucketed = live(&whole[0], Category::Gradient) / 4;
        let padding = bucketed - elements - 256 * 128;
        for (whole, divided) in whole.iter().zip(divided) {
            for category in Category::ALL.into_iter().filter(|c| *c != Category::OptimizerState) {
                assert_eq!(live(divided, category), live(whole, category), "{category:?}");
            }
            let saved = state(whole) - state(divided);
            let fair = 8 * (elements - elements / ranks);
            assert!(saved.abs_diff(fair) <= 8 * padding, "{saved} of {fair}, within {}", 8 * padding);
        }
    }
}

/// Plans for a GPU that need not be present.
#[test]
fn bf16_gradients_halve_only_their_own_bytes() {
    const RANKS: u64 = 2;
    // One bucket per gradient and one for the loss: 128 f32 per rank.
    const LOSS: u64 = 4 * 128 * RANKS;
    // The largest gradient: 256 tokens, or a hidden layer of 4 · 32.
    const LARGEST: u64 = 256 * 32;
    let plan_with = |gradients: &str, more: &[&str]| {
        let gradients = format!("precision.gradients={gradients}");
        let sets =
            ["model.heads=1", "precision.compute=bf16", "parallel.data=2", "parallel.bucket_bytes=512"];
        let config = config(GPT, &[&sets[..], &[&gradients], more].concat());
        let setup = prepare(
            config,
            Placement::Meta(PlanDevice::shipped().unwrap().description(DeviceRanks::CONNECTED)),
        )
        .unwrap();
        plan(&setup, 0).unwrap().counters
    };
    for (more, scratch) in [(&[][..], LARGEST), (&[SHARDED], LARGEST), (&["parallel.reduction=nccl"], 0)] {
        let single = plan_with("f32", more);
        let half = plan_with("bf16", more);
        for category in Category::ALL {
            let [single, half] =
                [&single, &half].map(|counters| counters.get(Statistic::LiveBytes(category)));
            match category {
                Category::Gradient => assert_eq!(single - LOSS, 2 * (half - LOSS), "{more:?}"),
                Category::Communication => assert_eq!(single - half, 2 * scratch, "{more:?}"),
                _ => assert_eq!(single, half, "{category:?} {more:?}"),
            }
        }
    }
}

/// Checks that each ZeRO stage divides its kinds of state by the ranks that share them.
#[test]
fn each_stage_divides_more_of_the_state() {
    const MODEL: [&str; 4] =
        ["model.width=128", "model.layers=6", "train.steps=1", "parallel.bucket_bytes=100000"];
    let live = |ran: &RankStatistics, category| ran.get(Statistic::LiveBytes(category));
    let on = |more: &[&str]| run(GPT, &[&MODEL[..], &["parallel.data=4"], more].concat());
    let stages = ["0", "1", "2", "3"].map(|stage| on(&[&format!("parallel.zero_stage={stage}")]));
    let pairs = on(&[ZERO_3, PAIRS]);
    for rank in 0..4 {
        let bytes_by_stage = |category| stages.each_ref().map(|report| live(&report.ranks[rank], category));
        let is_quarter = |part: u64, whole: u64| part.abs_diff(whole / 4) < whole / 16;
        let [whole, of_1, of_2, of_3] = bytes_by_stage(Category::OptimizerState);
        assert!([of_1, of_2, of_3].iter().all(|part| is_quarter(*part, whole)), "state: {of_1} of {whole}");
        // Besides shards, buffers of two buckets; at stage 3 buckets are units of weights.
        let [whole, of_1, of_2, of_3] = bytes_by_stage(Category::Gradient);
        assert!(of_1 == whole && 2 * of_2 < whole && 3 * of_3 < 2 * whole, "{of_2} {of_3} of {whole}");
        let [whole, of_1, of_2, of_3] = bytes_by_stage(Category::Parameter);
        assert!(of_1 == whole && of_2 == whole && is_quarter(of_3, whole), "weights: {of_3} of {whole}");
        // In groups of two ranks, half of it.
        for category in [Category::Parameter, Category::OptimizerState] {
            let whole = bytes_by_stage(category)[0];
            let half = live(&pairs.ranks[rank], category);
            assert!(half.abs_diff(whole / 2) < whole / 8, "{category:?}: {half} of {whole}");
        }
    }
}

/// Checks that a tensor-parallel rank has its part of the weights, of their gradients and state, and of the
/// activations between layers.
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
    let on = |more: &[&str]| run(GPT, &[&MODEL[..], &[LANES], more].concat());
    let alone = on(&[]);
    let shared = on(&["parallel.tensor=4"]);
    for rank in &shared.ranks {
        let bytes_by_rank = |category| {
            let live = |rank: &telemetry::RankStatistics| rank.get(Statistic::LiveBytes(category));
            (live(rank), live(&alone.ranks[0]))
        };
        for category in [Category::Parameter, Category::OptimizerState] {
            let (part, whole) = bytes_by_rank(category);
            assert!(part.abs_diff(whole / 4) < whole / 16, "{category:?}: {part} of {whole}");
        }
        let peak = |rank: &telemetry::RankStatistics| rank.get(Statistic::PeakAllocatedBytes);
        assert!(2 * peak(rank) < peak(&alone.ranks[0]), "{} of {}", peak(rank), peak(&alone.ranks[0]));
    }
}

/// Checks that, from ZeRO stage 1 on, context-parallel ranks share state like data-parallel ranks.
#[test]
fn ranks_that_share_sequences_share_their_state() {
    let on = |more: &[&str]| {
        let settings = ["model.width=128", "model.layers=4", "train.steps=1", PIECES];
        run(GPT, &[&settings[..], more].concat())
    };
    let alone = on(&[]);
    for (stage, category) in [(1, Category::OptimizerState), (3, Category::Parameter)] {
        let shared = on(&["parallel.context=2", &format!("parallel.zero_stage={stage}")]);
        for rank in &shared.ranks {
            let live = |rank: &RankStatistics| rank.get(Statistic::LiveBytes(category));
            let part = live(rank);
            let whole = live(&alone.ranks[0]);
            assert!(part < whole * 5 / 8, "stage {stage}, {category:?}: {part} of {whole}");
        }
    }
}

#[test]
fn ranks_that_share_weights_train_a_model_that_one_rank_cannot_hold() {
    let sets = [
        "model.width=256",
        "model.layers=24",
        "train.steps=2",
        "train.micro_batch_size=1",
        "train.global_batch_size=4",
        "model.context=16",
    ];
    let on = |more: &[&str]| config(GPT, &[&sets[..], more].concat());
    let four = ["parallel.data=4", ZERO_3];
    let needs = |more: &[&str]| {
        let setup = prepare(on(more), Placement::Cpu).unwrap();
        let peak = |rank: usize| plan(&setup, rank).unwrap().statistics.peak_reserved();
        (0..setup.config.world_size()).map(peak).max().unwrap()
    };
    let most = needs(&four);
    assert!(2 * most < needs(&["parallel.data=1"]), "{most} bytes");
    let limit = format!("memory.limit_bytes={most}");
    let directory = tempfile::tempdir().unwrap();
    let train = |name: &str, more: &[&str]| {
        let config = on(&[more, &[&limit]].concat());
        train_in(&directory.path().join(name), config, DeviceChoice::Cpu)
    };
    for whole in [&["parallel.data=1"][..], &["parallel.data=4"], &["parallel.data=4", ZERO_2]] {
        let refused = train("refused", whole).unwrap_err();
        assert_eq!(refused.exit_status(), 2, "{whole:?}: {refused}");
        assert!(refused.to_string().contains("memory.limit_bytes"), "{whole:?}: {refused}");
    }
    let shared = train("shared", &four).unwrap();
    let alone = train_in(&directory.path().join("alone"), on(&[]), DeviceChoice::Cpu).unwrap();
    assert_eq!(shared.summary.weights_sha256, alone.summary.weights_sha256);
    assert_eq!(shared.summary.losses, alone.summary.losses);
}

/// Checks that four ranks train a model that one rank cannot hold within their limit.
#[test]
fn ranks_that_share_layers_hold_what_one_cannot() {
    const MODEL: [&str; 4] = ["model.width=256", "model.heads=4", "model.layers=4", "train.steps=1"];
    let planned = |more: &[&str]| {
        let setup = prepare(config(GPT, &[&MODEL[..], &[LANES], more].concat()), Placement::Cpu).unwrap();
        plan(&setup, 0).unwrap().statistics.peak_reserved()
    };
    let alone = planned(&[]);
    let shared = planned(&["parallel.tensor=4"]);
    let limit = format!("memory.limit_bytes={}", (alone + shared) / 2);
    check(&[(GPT, &[&MODEL[..], &[LANES, "parallel.tensor=4", &limit]].concat(), ONCE)]);
    let setup = prepare(config(GPT, &[&MODEL[..], &[LANES, &limit]].concat()), Placement::Cpu).unwrap();
    assert!(plan(&setup, 0).is_err());
}

fn strs(settings: &[String]) -> Vec<&str> {
    settings.iter().map(String::as_str).collect()
}

/// Checks that four ranks train on a context that one rank cannot hold within their limit.
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
    let alone = planned(&[]);
    let shared = planned(&[FOUR]);
    assert!(3 * shared < alone, "{shared} of {alone}");
    let limit = format!("memory.limit_bytes={}", (alone + shared) / 2);
    check(&[(GPT, &strs(&settings(&[FOUR, &limit])), ONCE)]);
    let setup = prepare(config(GPT, &strs(&settings(&[&limit]))), Placement::Cpu).unwrap();
    assert!(plan(&setup, 0).is_err());
}

/// Plans for a GPU on Meta: both FP8 copies of a weight take one byte per element and share a scale, and the
/// activations kept for backward shrink.
#[test]
fn fp8_copies_and_activations_are_planned_to_the_byte() {
    let plan_with = |matmul: &str| {
        let matmul = format!("precision.matmul={matmul}");
        let batch = ["train.micro_batch_size=8", "parallel.lanes=1"];
        let sets = [&["model.width=128", "precision.compute=bf16", &matmul][..], &batch].concat();
        let description = PlanDevice::shipped().unwrap().description(DeviceRanks::ALONE);
        let setup = prepare(config(GPT, &sets), Placement::Meta(description)).unwrap();
        plan(&setup, 0).unwrap().counters
    };
    let compute = plan_with("compute");
    let fp8 = plan_with("fp8");
    let live_bytes = |counters: &RankStatistics, category| counters.get(Statistic::LiveBytes(category));
    // Two blocks of 12 matrices of width², minus the first layer's three.
    let elements = (2 * 12 - 3) * 128 * 128;
    let layers = 2 * 4 - 1;
    let copies = 2 * elements + 512 * layers;
    assert_eq!(live_bytes(&fp8, Category::Parameter), live_bytes(&compute, Category::Parameter) + copies);
    let peak = |counters: &RankStatistics| counters.get(Statistic::PeakBytes(Category::Activation));
    // Each layer but the first keeps its input, 8 · 32 rows, in one byte per element instead of two.
    let inputs = 2 * (128 + 128 + 128 + 4 * 128) - 128;
    assert!(peak(&fp8) + 8 * 32 * inputs <= peak(&compute), "{} of {}", peak(&fp8), peak(&compute));
}
