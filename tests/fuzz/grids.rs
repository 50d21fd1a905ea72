//! Fuzzes grids: they must have the bits of one rank and the planned bytes.

use config::RunConfig;
use worker::DeviceChoice;

use crate::common::random::{Budget, Random};
use crate::common::root;
use crate::common::runs::{CORRECTED_EXPERTS, GPT, LLAMA, MLP, RESNET, train_in};

/// A configuration, and the settings with which it may be combined.
struct Base {
    text: &'static str,
    sizes: &'static [&'static str],
    /// Number of layers; `None` if drawn at random.
    layers: Option<usize>,
    precisions: &'static [&'static [&'static str]],
    options: &'static [&'static str],
    /// Optional features of the model and its training.
    features: &'static [&'static [&'static str]],
    /// Whether tensor and context parallelism are possible.
    is_transformer: bool,
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
const FEATURES: &[&[&str]] = &[
    &["model.window=5", "model.layer_types=['sliding_attention', 'full_attention']"],
    &["model.qk_norm=true", "model.norm_position=both"],
    &["model.attention_sinks=true", "model.qkv_bias=true", "model.output_bias=true"],
    &["model.attention_soft_cap=5.0", "model.logit_soft_cap=10.0", "model.norms_less_one=true"],
    &["model.key_value_heads=4", "model.latent_width=32", "model.head_width=32", "model.rope_width=16"],
    &["model.experts=4", "model.expert_width=64", "train.balance_loss=0.01", "train.router_z_loss=0.001"],
    CORRECTED_EXPERTS,
    &["data.pack_documents=true", "data.document_mask=true"],
    &["lora.rank=4", "lora.dropout=0.1"],
    &["lora.rank=4", "lora.base=nf4"],
    &["train.freeze=['*.0.*']"],
];
const BASES: [Base; 4] = [
    Base {
        text: GPT,
        sizes: &["model.width=64"],
        layers: None,
        precisions: PRECISIONS,
        options: OPTIONS,
        features: &[],
        is_transformer: true,
    },
    Base {
        text: LLAMA,
        sizes: &["model.width=64"],
        layers: None,
        precisions: PRECISIONS,
        options: OPTIONS,
        features: FEATURES,
        is_transformer: true,
    },
    Base { text: MLP, layers: Some(5), ..OTHER },
    Base { text: RESNET, layers: Some(8), ..OTHER },
];
const OTHER: Base = Base {
    text: MLP,
    sizes: &[],
    layers: None,
    precisions: &[&[], &[BF16], &[F16]],
    options: &[],
    features: &[],
    is_transformer: false,
};
/// Maximum number of ranks of a grid.
const MOST_RANKS: usize = 12;

/// Numbers of parts over which a run's sums are defined, and number of layers.
#[derive(Clone, Copy, Debug)]
struct RunSizes {
    lanes: usize,
    of_lane: usize,
    tensor: usize,
    context: usize,
    layers: usize,
}

/// Draws settings that affect the bits.
fn settings(random: &mut Random, base: &Base) -> (Vec<String>, RunSizes) {
    let lanes = 1 + random.below(9);
    let of_lane = 1 + random.below(3);
    let micro_batch = 1 + random.below(3);
    let (tensor, context) = match base.is_transformer {
        true => (*random.one(&[1, 1, 2]), *random.one(&[1, 1, 2, 4])),
        false => (1, 1),
    };
    let layers = base.layers.unwrap_or_else(|| 1 + random.below(5));
    let mut set = vec![
        format!("train.micro_batch_size={micro_batch}"),
        format!("train.global_batch_size={}", micro_batch * lanes * of_lane),
        format!("parallel.lanes={lanes}"),
        format!("train.seed={}", random.below(1000)),
        format!("optim.clip_norm={}", random.one(&["0", "0.1", "1.0"])),
        "train.steps=3".to_owned(),
    ];
    if base.layers.is_none() {
        set.push(format!("model.layers={layers}"));
    }
    if base.is_transformer {
        set.push(format!("parallel.tensor_lanes={tensor}"));
        set.push(format!("parallel.context_lanes={context}"));
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
    // Skipped updates: about half of the norms are spikes, or the first gradients overflow.
    if random.once_in(4) {
        let spikes = ["on_spike=skip", "spike_deviations=0.001", "spike_window=2", "steps=7"];
        set.extend(spikes.map(|setting| format!("train.{setting}")));
    }
    if set.iter().any(|setting| setting == F16) && random.once_in(2) {
        set.push("precision.scaler.init_scale=3e7".to_owned());
    }
    let features = base.features.iter().filter(|_| random.once_in(5));
    set.extend(features.flat_map(|feature| feature.iter().map(|&setting| setting.to_owned())));
    (set, RunSizes { lanes, of_lane, tensor, context, layers })
}

/// Draws settings of the grid and schedule, which do not affect the bits.
fn grid(random: &mut Random, parts: RunSizes) -> Vec<String> {
    let data = 1 + random.below(parts.lanes);
    // The schedule needs enough micro-batches on each rank.
    let fewest = parts.lanes / data * parts.of_lane;
    let most = 4.min(parts.layers).min(fewest).min(MOST_RANKS / data).max(1);
    let pipeline = 1 + random.below(most);
    // Each context-parallel rank has a piece from the beginning and one from the end of a sequence.
    let shared = (1 + random.below(parts.tensor), 1 + random.below((parts.context / 2).max(1)));
    let (tensor, context) = if data * pipeline * shared.0 * shared.1 <= MOST_RANKS { shared } else { (1, 1) };
    let shards: Vec<usize> = (0..=data).filter(|shard| *shard == 0 || data.is_multiple_of(*shard)).collect();
    let mut set = vec![
        format!("parallel.data={data}"),
        format!("parallel.pipeline={pipeline}"),
        format!("parallel.tensor={tensor}"),
        format!("parallel.context={context}"),
        format!("parallel.zero_stage={}", random.below(4)),
        format!("parallel.shard={}", random.one(&shards)),
        format!("parallel.prefetch={}", random.one(&[0, 1, 2, 64])),
        format!("parallel.bucket_bytes={}", random.one(&[512, 4096, 67_108_864])),
        format!("parallel.overlap={}", random.one(&["on", "late", "off", "auto"])),
        format!("memory.recompute={}", random.one(&["none", "block", "1", "auto"])),
        format!("optim.offload={}", random.once_in(6)),
        format!("memory.offload_weights={}", random.once_in(6)),
        format!("memory.offload={}", if random.once_in(6) { "activations" } else { "none" }),
    ];
    if pipeline > 1 {
        set.push(format!(
            "parallel.schedule={}",
            random.one(&["1f1b", "gpipe", "interleaved", "zero-bubble"])
        ));
        set.push(format!("parallel.partition={}", random.one(&["fastest", "smallest"])));
    }
    set
}

/// Bits of the losses, hash of the weights, and bits of the validation loss.
type History = (Vec<u32>, String, Option<u64>);

/// Trains; every rank's memory must be exactly as planned. Returns `None` if the settings contradict each
/// other.
fn history(text: &str, set: &[String]) -> Option<History> {
    let directory = tempfile::tempdir().unwrap();
    vision::register().unwrap();
    let config = RunConfig::parse(text, "test.toml", &root(), set).ok()?;
    let report = match train_in(&directory.path().join("run"), config, DeviceChoice::Cpu) {
        Err(error) if error.exit_status() == 2 => return None,
        trained => trained.unwrap_or_else(|error| panic!("{set:?}: {error}")),
    };
    assert!(report.unplanned.as_ref().is_some_and(Vec::is_empty), "{set:?}: {report}");
    let losses = report.summary.losses.iter().map(|loss| loss.to_bits()).collect();
    Some((losses, report.summary.weights_sha256.clone(), report.validation_loss.map(f64::to_bits)))
}

#[test]
fn random_grids_have_the_bits_of_one_rank_and_the_bytes_of_their_plan() {
    let budget = Budget::of_fuzzer();
    let mut random = Random::new(17);
    let mut round = 0;
    let (mut compared, mut refused) = (0, 0);
    while budget.within(round, 4) {
        let base = random.one(&BASES);
        let (common, parts) = settings(&mut random, base);
        let Some(alone) = history(base.text, &common) else {
            refused += 1;
            assert!(refused < 20 + 3 * compared, "{refused} draws refused, {compared} compared: {common:?}");
            continue;
        };
        for _ in 0..3 {
            let grid = grid(&mut random, parts);
            let Some(history) = history(base.text, &[common.clone(), grid.clone()].concat()) else {
                refused += 1;
                continue;
            };
            assert_eq!(history, alone, "{common:?} {grid:?}");
            compared += 1;
        }
        round += 1;
    }
    assert!(compared > refused, "{compared} grids, {refused} refused");
}
