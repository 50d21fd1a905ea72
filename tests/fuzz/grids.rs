//! Random grids: the bits of one rank, and the bytes of the plan.

use crate::common::random::{Budget, Random};
use crate::common::runs::{GPT, LLAMA, MLP, RESNET, train};

/// A configuration and the settings that it may have.
struct Base {
    text: &'static str,
    sizes: &'static [&'static str],
    /// Layers of the model; `None` if they are drawn.
    layers: Option<usize>,
    precisions: &'static [&'static [&'static str]],
    options: &'static [&'static str],
}

const BF16: &str = "precision.compute=bf16";
const F16: &str = "precision.compute=f16";
const FP8: &str = "precision.matmul=fp8";
const PRECISIONS: &[&[&str]] = &[
    &[],
    &[BF16],
    &[F16],
    &[BF16, "precision.weights=f32"],
    &[F16, "precision.weights=f32", "precision.scaler.growth_interval=2"],
    &[BF16, "precision.gradients=bf16"],
    &[BF16, FP8],
    &[BF16, FP8, "precision.fp8_recipe=rowwise"],
    &[BF16, FP8, "precision.fp8_gradients=e5m2"],
];
const OPTIONS: &[&str] = &[
    "model.dropout=0.1",
    "model.loss_pieces=2",
    "model.tied=false",
    "model.tied=true",
    "optim.state=bf16",
    "optim.state=8bit",
];
const BASES: [Base; 4] = [
    Base { text: GPT, sizes: &["model.width=64"], layers: None, precisions: PRECISIONS, options: OPTIONS },
    Base {
        text: LLAMA,
        sizes: &["model.width=64", "model.heads=2", "model.key_value_heads=1"],
        layers: None,
        precisions: PRECISIONS,
        options: OPTIONS,
    },
    Base { text: MLP, sizes: &[], layers: Some(5), precisions: &[&[], &[BF16], &[F16]], options: &[] },
    Base { text: RESNET, sizes: &[], layers: Some(8), precisions: &[&[], &[BF16], &[F16]], options: &[] },
];

/// Settings of a run that decide its bits, and its layers.
fn settings(random: &mut Random, base: &Base) -> (Vec<String>, usize) {
    let lanes = 1 + random.below(9);
    let of_lane = 1 + random.below(3);
    let micro_batch = 1 + random.below(3);
    let mut set = vec![
        format!("train.micro_batch_size={micro_batch}"),
        format!("train.global_batch_size={}", micro_batch * lanes * of_lane),
        format!("parallel.lanes={lanes}"),
        format!("train.seed={}", random.below(1000)),
        format!("optim.clip_norm={}", random.one(&["0", "0.1", "1.0"])),
        "train.steps=3".to_owned(),
    ];
    let layers = base.layers.unwrap_or_else(|| 1 + random.below(5));
    if base.layers.is_none() {
        set.push(format!("model.layers={layers}"));
    }
    if base.text != MLP {
        set.push(format!("train.validation_micro_batches={}", 1 + random.below(4)));
    }
    if random.once_in(3) {
        set.push(format!("optim.kind={}", random.one(&["sgd", "lion"])));
    }
    let more = base.sizes.iter().chain(*random.one(base.precisions));
    set.extend(more.map(|&setting| setting.to_owned()));
    if !base.options.is_empty() && random.once_in(2) {
        set.push((*random.one(base.options)).to_owned());
    }
    (set, layers)
}

/// Settings of the grid and schedule, which decide no bits.
fn grid(random: &mut Random, lanes: usize, micro_batches: usize, layers: usize) -> Vec<String> {
    let data = 1 + random.below(lanes);
    // The schedule needs enough micro-batches on each rank.
    let fewest = lanes / data * (micro_batches / lanes);
    let fits = |stages: &usize| fewest >= *stages;
    let mut stages: Vec<usize> = (1..=4.min(layers)).filter(fits).collect();
    if stages.is_empty() {
        stages.push(1);
    }
    let pipeline = *random.one(&stages);
    let shards: Vec<usize> = (0..=data).filter(|shard| *shard == 0 || data.is_multiple_of(*shard)).collect();
    let mut set = vec![
        format!("parallel.data={data}"),
        format!("parallel.pipeline={pipeline}"),
        format!("parallel.zero_stage={}", random.below(4)),
        format!("parallel.shard={}", random.one(&shards)),
        format!("parallel.prefetch={}", random.one(&[0, 1, 2, 64])),
        format!("parallel.bucket_bytes={}", random.one(&[512, 4096, 67_108_864])),
        format!("parallel.overlap={}", random.one(&["on", "off", "auto"])),
        format!("memory.recompute={}", random.one(&["none", "block", "1", "auto"])),
    ];
    if pipeline > 1 {
        set.push(format!("parallel.schedule={}", random.one(&["1f1b", "gpipe", "zero-bubble"])));
        set.push(format!("parallel.partition={}", random.one(&["fastest", "smallest"])));
    }
    set
}

/// Returns losses, weights and validation loss as bits; the plan of every rank must be right to the byte.
fn history(text: &str, set: &[String]) -> (Vec<u32>, String, Option<u64>) {
    let set: Vec<&str> = set.iter().map(String::as_str).collect();
    let report = train(text, &set);
    assert!(report.unplanned.as_ref().is_some_and(Vec::is_empty), "{set:?}: {report}");
    let losses = report.summary.losses.iter().map(|loss| loss.to_bits()).collect();
    (losses, report.summary.weights_sha256.clone(), report.validation_loss.map(f64::to_bits))
}

#[test]
fn random_grids_have_the_bits_of_one_rank_and_the_bytes_of_their_plan() {
    let (budget, mut random, mut round) = (Budget::of_fuzzer(), Random::new(17), 0);
    while budget.within(round, 4) {
        let base = random.one(&BASES);
        let (text, (common, layers)) = (base.text, settings(&mut random, base));
        let number = |key: &str| -> usize {
            let value = common.iter().find_map(|one| one.strip_prefix(key)?.strip_prefix('='));
            value.unwrap().parse().unwrap()
        };
        let lanes = number("parallel.lanes");
        let micro_batches = number("train.global_batch_size") / number("train.micro_batch_size");
        let alone = history(text, &common);
        for _ in 0..3 {
            let grid = grid(&mut random, lanes, micro_batches, layers);
            assert_eq!(history(text, &[common.clone(), grid.clone()].concat()), alone, "{common:?} {grid:?}");
        }
        round += 1;
    }
}
