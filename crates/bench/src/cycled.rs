//! Synthetic images and samples that are generated once and reused, so that generating them is not measured.

use std::sync::Arc;

use config::DataKind;
use data::CycledSource;
use nn::Examples;
use worker::Setup;

/// Minimum number of generated micro-batches.
const FEWEST: usize = 4;

/// Replaces a setup's synthetic images or samples by a few generated micro-batches, at least one step's,
/// used in rotation. Also returns their number. Other data is unchanged.
pub(crate) fn cycled(setup: Setup) -> (Setup, Option<usize>) {
    let config = &setup.config;
    let makes_tokens = matches!(config.model.examples(), Examples::Tokens { .. });
    if config.data.kind != DataKind::Synthetic || makes_tokens {
        return (setup, None);
    }
    let count = config.train.micro_batches().max(FEWEST);
    let source = CycledSource::new(Arc::clone(&setup.dataset.source), count);
    let dataset = setup.dataset.clone().through(Arc::new(source));
    (Setup { dataset, ..setup }, Some(count))
}
