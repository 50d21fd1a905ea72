//! Synthetic images that are made once, so that a benchmark does not measure how they are made.

use std::sync::Arc;

use config::DataKind;
use data::CycledSource;
use nn::Examples;
use worker::Setup;

/// The fewest micro-batches that are made.
const FEWEST: usize = 4;

/// Returns the setup with synthetic images of a few micro-batches in turn, at least one step's, and their
/// number; others' data stays as it is.
pub(crate) fn cycled(setup: Setup) -> (Setup, Option<usize>) {
    let config = &setup.config;
    let makes_images = matches!(config.model.examples(), Examples::Images { .. });
    if config.data.kind != DataKind::Synthetic || !makes_images {
        return (setup, None);
    }
    let count = config.train.micro_batches().max(FEWEST);
    let source = CycledSource::new(Arc::clone(&setup.dataset.source), count);
    let dataset = setup.dataset.clone().through(Arc::new(source));
    (Setup { dataset, ..setup }, Some(count))
}
