//! Settings that have no effect on a run, reported as sentences.

use std::sync::Arc;

use config::{
    Checkpoint, LoraSection, MatmulPrecision, Parallel, Precision, RecomputePolicy, RunConfig, ScheduleName,
    Telemetry,
};
use device::{Description, Kind};
use parallel::data::Reduction;
use worker::Setup;

use crate::roles::{plan_one, skipping};

/// Lowest compute capability with TF32 (Ampere).
const TF32_CAPABILITY: (u32, u32) = (8, 0);

/// Keys that have no effect under a condition.
struct Idle {
    when: fn(&RunConfig, &Description) -> bool,
    keys: &'static [&'static str],
    words: &'static str,
}

const IDLE: &[Idle] = &[
    Idle {
        when: |config, _| config.parallel.pipeline == 1,
        keys: &[Parallel::partition, Parallel::schedule, Parallel::chunks, Parallel::profile],
        words: "with parallel.pipeline = 1",
    },
    Idle {
        when: |config, _| config.parallel.data * config.parallel.context == 1,
        keys: &[Parallel::zero_stage, Parallel::shard],
        words: "with parallel.data = 1: there is nobody to share state with",
    },
    Idle {
        when: |config, _| config.parallel.data > 1 && config.parallel.sharding_stage() < 2,
        keys: &[Parallel::shard],
        words: "below parallel.zero_stage = 2: all data-parallel ranks share the optimizer's state",
    },
    Idle {
        when: |config, _| !config.gathers_weights(),
        keys: &[Parallel::prefetch],
        words: "without sharded or offloaded weights (parallel.zero_stage = 3, memory.offload_weights): every \
                rank has all of them",
    },
    Idle {
        when: |config, _| config.parallel.replicas() == 1,
        keys: &[Parallel::reduction, Parallel::overlap, Parallel::peer_access, Parallel::peer_blocks],
        words: "with parallel.data = 1: no gradients are summed over ranks",
    },
    Idle {
        when: |config, _| config.parallel.replicas() == 1,
        keys: &[Parallel::bucket_bytes],
        words: "with parallel.data = 1, but for the sizes of the buffers of gradients",
    },
    Idle {
        when: |config, _| config.gathers_weights(),
        keys: &[Parallel::bucket_bytes],
        words: "with parallel.zero_stage = 3 or memory.offload_weights: a bucket of gradients is a unit of weights",
    },
    Idle {
        when: |config, _| config.parallel.shards_gradients(),
        keys: &[Parallel::overlap, Parallel::peer_access, Parallel::peer_blocks],
        words: "from parallel.zero_stage = 2 on: a full bucket is exchanged at once, over the transport",
    },
    Idle {
        when: |config, device| {
            config.parallel.data > 1 && !config.parallel.shards_gradients() && device.kind == Kind::Cpu
        },
        keys: &[Parallel::peer_access, Parallel::peer_blocks],
        words: "on CPU ranks: it is for GPUs of one host",
    },
    Idle {
        when: |config, _| {
            config.parallel.data > 1
                && !config.parallel.shards_gradients()
                && config.train.halves_micro_batches()
        },
        keys: &[Parallel::overlap],
        words: "with train.on_out_of_memory = \"halve_micro_batch\", which sums gradients after backward",
    },
    Idle { when: |_, device| device.kind == Kind::Cpu, keys: &[Precision::tf32], words: "on a CPU" },
    Idle {
        when: |_, device| device.kind == Kind::Cuda && device.compute_capability < TF32_CAPABILITY,
        keys: &[Precision::tf32],
        words: "on a GPU of compute capability below 8.0, which has no TF32",
    },
    Idle {
        when: |config, _| config.precision.matmul == MatmulPrecision::Compute,
        keys: &[Precision::fp8_recipe, Precision::fp8_gradients, Precision::fp8_layers],
        words: "with precision.matmul = \"compute\"",
    },
    Idle {
        when: |config, _| config.lora.rank == 0,
        keys: &[
            LoraSection::base,
            LoraSection::dropout,
            LoraSection::targets,
            LoraSection::scaling,
            LoraSection::rank_pattern,
            LoraSection::alpha_pattern,
            LoraSection::b_learning_rate,
            LoraSection::train_also,
        ],
        words: "with lora.rank = 0: there are no adapters",
    },
    Idle {
        when: |config, _| !config.checkpoint.is_kept() && !config.checkpoint.keep_best,
        keys: &[Checkpoint::keep, Checkpoint::wait],
        words: "with checkpoint.every = 0 and checkpoint.minutes = 0: there are no checkpoints",
    },
    Idle {
        when: |config, _| config.telemetry.listen.is_empty(),
        keys: &[Telemetry::listen_publicly],
        words: "without telemetry.listen",
    },
];

/// Returns a sentence for each setting that is not the default and has no effect on this run.
pub fn without_effect(setup: &Setup) -> Vec<String> {
    let config = &*setup.config;
    let device = setup.placement.description();
    let changed = config.non_defaults();
    let idle = IDLE.iter().filter(|idle| (idle.when)(config, &device));
    let mut sentences: Vec<String> = idle
        .flat_map(|Idle { keys, words, .. }| {
            let keys = keys.iter().filter(|key| changed.contains(*key));
            keys.map(move |key| format!("{key} has no effect {words}"))
        })
        .collect();
    let mut say = |condition: bool, sentence: &dyn Fn() -> String| {
        if condition {
            sentences.push(sentence());
        }
    };
    let RunConfig { train, optim, parallel, memory, lora, .. } = config;
    // The default of alpha is the rank.
    say(lora.rank == 0 && lora.alpha != 0.0, &|| {
        format!("{} has no effect with lora.rank = 0: there are no adapters", LoraSection::alpha)
    });
    let is_library = parallel.reduction == Reduction::Library;
    say(parallel.data > 1 && device.kind == Kind::Cpu && is_library, &|| {
        "parallel.reduction = \"nccl\" names a library that CPU ranks do not have: they add in a fixed tree"
            .to_owned()
    });
    let on_host = device.kind == Kind::Cpu;
    say(parallel.ranks_per_device > 1 && (on_host || !parallel.shares_gpu()), &|| {
        let why = if on_host { "on the CPU, which all ranks share" } else { "with one rank" };
        format!("parallel.ranks_per_device has no effect {why}")
    });
    let steps = train.steps.saturating_sub(optim.schedule_start);
    say(optim.warmup_steps >= steps && optim.warmup_steps > 0, &|| {
        let warm_up = optim.warmup_steps;
        let falls = matches!(optim.schedule, ScheduleName::Cosine | ScheduleName::Linear | ScheduleName::Wsd);
        let minimum = if falls { ", and optim.min_learning_rate has no effect" } else { "" };
        format!(
            "optim.warmup_steps = {warm_up} is not below train.steps = {steps}: the learning rate never \
             reaches {}{minimum}",
            optim.learning_rate
        )
    });
    let recomputes = memory.recompute == RecomputePolicy::Block && memory.recompute_layers == 0;
    let saves_nothing = recomputes && !block_saves(setup);
    say(saves_nothing, &|| {
        let kind = setup.config.model.kind();
        format!(
            "memory.recompute = \"block\" saves no memory with model.kind = \"{kind}\", whose layers keep \
             nothing but their inputs: it only computes them again"
        )
    });
    sentences
}

/// Returns whether recomputing layers reduces the first rank's memory.
fn block_saves(setup: &Setup) -> bool {
    let again = skipping(setup);
    let mut baseline = again.clone();
    Arc::make_mut(&mut baseline.config).memory.recompute = RecomputePolicy::None;
    match (plan_one(&baseline, 0), plan_one(&again, 0)) {
        (Ok(baseline), Ok(again)) => again.statistics.peak_allocated() < baseline.statistics.peak_allocated(),
        // A configuration that fits only with recomputation needs it.
        _ => true,
    }
}
