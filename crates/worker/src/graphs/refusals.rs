//! Reasons why a configuration's training steps, decode steps or evaluated micro-batches cannot be captured
//! in CUDA graphs.

use config::{Graphs, OffloadPolicy, OnSpike, RunConfig};

/// Maximum number of micro-batches in a captured step. The graphs contain the launches of each, and the
/// driver needs memory for them.
const MOST_MICRO_BATCHES: usize = 64;
/// Returns why a configuration's training steps cannot be captured on any GPU; `None` if they can.
#[must_use]
pub fn never_captured(config: &RunConfig) -> Option<&'static str> {
    let offloads = config.optim.offload || config.memory.offload != OffloadPolicy::None;
    let reasons = [
        (config.parallel.shares_gpu(), "several ranks share a GPU"),
        (config.parallel.context_lanes > 1, "sequences are computed in pieces"),
        (offloads, "tensors are offloaded to host memory"),
        (crate::build::objective(config).is_some(), "the data is pairs of answers"),
        (config.train.on_spike != OnSpike::Ignore, "the limit of the gradient norm changes with each step"),
        (config.train.halves_micro_batches(), "a step that runs out of memory is repeated"),
        (config.telemetry.hashes > 0, "the tensors of steps are hashed"),
        (config.train.micro_batches() > MOST_MICRO_BATCHES, "a step has more than 64 micro-batches"),
    ];
    turned_off(config).or_else(|| first_that_holds(&reasons))
}

/// Returns why a configuration's decode steps cannot be captured; `None` if they can.
#[must_use]
pub fn never_captured_decoding(config: &RunConfig) -> Option<&'static str> {
    let reasons = [
        (config.world_size() > 1, "several ranks communicate within a step"),
        (config.model.cached_heads().is_none(), "the model keeps no keys and values"),
        (config.gathers_weights(), "weights are gathered as they are used"),
    ];
    turned_off(config).or_else(|| first_that_holds(&reasons))
}

/// Returns why a configuration's evaluated micro-batches cannot be captured; `None` if they can.
pub(crate) fn never_captured_evaluation(config: &RunConfig) -> Option<&'static str> {
    let parallel = &config.parallel;
    let offloads = config.optim.offload || config.memory.offload != OffloadPolicy::None;
    let reasons = [
        (parallel.shares_gpu(), "several ranks share a GPU"),
        (parallel.pipeline * parallel.tensor * parallel.context > 1, "ranks communicate within a pass"),
        (parallel.context_lanes > 1, "sequences are computed in pieces"),
        (config.gathers_weights(), "weights are gathered as they are used"),
        (parallel.sharding_stage() > 0, "updated weights arrive as they are used"),
        (offloads, "tensors are offloaded to host memory"),
        (crate::build::objective(config).is_some(), "the data is pairs of answers"),
    ];
    turned_off(config).or_else(|| first_that_holds(&reasons))
}

/// Returns the reason if the configuration turns CUDA graphs off.
fn turned_off(config: &RunConfig) -> Option<&'static str> {
    (config.train.graphs == Graphs::Off).then_some("train.graphs is \"off\"")
}

fn first_that_holds(reasons: &[(bool, &'static str)]) -> Option<&'static str> {
    reasons.iter().find(|(holds, _)| *holds).map(|(_, reason)| *reason)
}
