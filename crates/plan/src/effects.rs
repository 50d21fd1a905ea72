//! Settings that have no effect on a run, in sentences.

use std::sync::Arc;

use config::{PartitionPolicy, RecomputePolicy, RunConfig, ScheduleName};
use device::Kind;
use parallel::pipeline::ScheduleKind;
use worker::Setup;

use crate::roles::{plan_one, skipping};

/// Returns a sentence for each setting that differs from its default and changes nothing in this run.
pub fn without_effect(setup: &Setup) -> Vec<String> {
    let RunConfig { train, optim, parallel, memory, .. } = &*setup.config;
    let mut sentences = Vec::new();
    let mut say = |found: bool, sentence: &dyn Fn() -> String| {
        if found {
            sentences.push(sentence());
        }
    };
    let alone = |key: &str| format!("parallel.{key} has no effect with parallel.pipeline = 1");
    let one_stage = parallel.pipeline == 1;
    say(one_stage && parallel.partition != PartitionPolicy::Fastest, &|| alone("partition"));
    say(one_stage && parallel.schedule != ScheduleKind::OneForwardOneBackward, &|| alone("schedule"));
    say(one_stage && parallel.profile.is_some(), &|| alone("profile"));
    say(parallel.data == 1 && parallel.zero_stage > 0, &|| {
        "parallel.zero_stage has no effect with parallel.data = 1: there is nobody to share the optimizer's \
         state with"
            .to_owned()
    });
    let on_host = setup.placement.description().kind == Kind::Cpu;
    say(parallel.ranks_per_device > 1 && (on_host || !parallel.shares_gpu()), &|| {
        let why = if on_host { "on the CPU, which all ranks share" } else { "with one rank" };
        format!("parallel.ranks_per_device has no effect {why}")
    });
    say(optim.warmup_steps >= train.steps && optim.warmup_steps > 0, &|| {
        let (warm_up, steps) = (optim.warmup_steps, train.steps);
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

/// Returns whether the first rank needs less memory with recomputed layers.
fn block_saves(setup: &Setup) -> bool {
    let again = skipping(setup);
    let mut kept = again.clone();
    Arc::make_mut(&mut kept.config).memory.recompute = RecomputePolicy::None;
    match (plan_one(&kept, 0), plan_one(&again, 0)) {
        (Ok(kept), Ok(again)) => again.statistics.peak_allocated() < kept.statistics.peak_allocated(),
        // A configuration that does not fit without it needs it.
        _ => true,
    }
}
