//! Shapes of token micro-batches, for a plan that reads no data.

use std::sync::Arc;

use config::{DataKind, RunConfig};
use data::TokenShapes;

use super::source::Dataset;

/// Returns a dataset with only the shapes of token micro-batches.
///
/// # Errors
/// The sizes are too large.
pub(super) fn token_shapes(config: &RunConfig, masks: bool) -> std::result::Result<Dataset, data::Error> {
    let sizes = [config.micro_batch_rows(), config.model.examples().units()];
    let shapes = TokenShapes::new(sizes, config.validation_micro_batches(), masks)?;
    let shapes = match config.data.kind {
        DataKind::Preference => shapes.of_pairs(planned_pairs(config)),
        _ => shapes,
    };
    Ok(Dataset::of_source(Arc::new(shapes)))
}

/// Returns the number of preference pairs that a plan assumes without reading them. With more, micro-batches
/// only repeat.
fn planned_pairs(config: &RunConfig) -> u64 {
    (4 * config.parallel.data * config.train.micro_batch_size) as u64
}
