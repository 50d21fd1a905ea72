//! Log lines that state a run's settings and planned memory.

use config::{RecomputePolicy, RunConfig};
use nn::Examples;
use plan::{partition, recompute};
use telemetry::units::{bytes, grouped};
use worker::stages::parameter_optim::GroupSummary;

use super::agreement::Launch;
use crate::options::RunOptions;
use crate::resume;

/// Describes how the model's vocabulary exceeds the tokenizer's; `None` if it does not.
fn vocabulary_in_words(config: &RunConfig) -> Option<String> {
    let Examples::Tokens { vocabulary, .. } = config.model.examples() else { return None };
    let name = config.tokenizer.name();
    let tokens = config.tokenizer.vocabulary();
    (tokens > 0 && vocabulary > tokens)
        .then(|| format!("vocabulary {vocabulary}: the {tokens} tokens of {name}, padded"))
}

/// Logs the settings of the run and its planned memory.
pub(super) fn announce(launch: &Launch, options: &RunOptions) {
    let Launch { setup, directory, plans } = launch;
    let config = &setup.config;
    tracing::info!(ranks = config.world_size(), "computing on {}", setup.reason);
    for warning in setup.device.settings.warnings() {
        tracing::warn!("memory.allocator: {warning}");
    }
    if let Some(warning) = config.tokenizer_warning() {
        tracing::warn!("{warning}");
    }
    for warning in config.dropout_warning().into_iter().chain(config.adapters_warning()) {
        tracing::warn!("{warning}");
    }
    for note in config.folder_notes().into_iter().chain(config.default_notes()) {
        tracing::info!("{note}");
    }
    for sentence in plan::without_effect(setup) {
        tracing::warn!("{sentence}");
    }
    if config.memory.preallocate && plans.roles().is_empty() {
        tracing::warn!("memory.preallocate has no effect without a plan");
    }
    if let Some(advice) = config.context_advice() {
        tracing::warn!("{advice}");
    }
    if let Some(figures) = setup.dataset.tokens.as_ref().and_then(|tokens| tokens.packing()) {
        let indices = figures.sequences * config.model.examples().units() as u64;
        tracing::info!(
            "packed {} documents into {} sequences, of which {:.1} % is padding; {} are longer and are cut",
            grouped(figures.documents),
            grouped(figures.sequences),
            100.0 * (1.0 - figures.tokens as f64 / indices as f64),
            grouped(figures.longer)
        );
    }
    if let Some(words) = vocabulary_in_words(config) {
        tracing::info!("{words}");
    }
    tracing::info!("run directory {}", directory.path().display());
    if config.memory.recompute != RecomputePolicy::None {
        tracing::info!("activations are recomputed in backward: {}", recompute::in_words(&config.memory));
    }
    if config.stages() > 1 {
        let layers = setup.blueprint.layers_of_stages();
        tracing::info!("layers of each stage: {layers}, {}", partition::in_words(config));
    }
    for group in GroupSummary::all(config, &setup.blueprint) {
        tracing::info!("{group}");
    }
    if let Some(plan) = plans.largest() {
        let both = |count: u64| format!("{} bytes ({})", grouped(count), bytes(count));
        let allocated = plan.statistics.peak_allocated();
        let reserved = plan.statistics.peak_reserved();
        tracing::info!(
            "planned: every rank allocates at most {} and reserves at most {}",
            both(allocated),
            both(reserved)
        );
    }
    if let Some(outlived) = plans.roles().iter().find_map(|plan| plan.parts.outlived()) {
        let grows =
            if plans.roles().iter().any(|plan| plan.parts.grows()) { ", more with every step" } else { "" };
        tracing::warn!("planned: {outlived}{grows}");
    }
    resume::announce(setup, options, directory.path());
}
