//! The shapes of micro-batches of tokens, for a plan that reads none.

use std::sync::Arc;

use config::{DataKind, RunConfig};
use data::TokenShapes;

use super::source::Dataset;

/// The shapes of micro-batches of tokens.
///
/// # Errors
/// Sizes that are too large.
pub(super) fn token_shapes(config: &RunConfig, masks: bool) -> std::result::Result<Dataset, data::Error> {
    let sizes = [config.micro_batch_rows(), config.model.examples().units()];
    let shapes = TokenShapes::new(sizes, config.validation_micro_batches(), masks)?;
    let shapes = match config.data.kind {
        DataKind::Preference => shapes.of_pairs(planned_pairs(config)),
        _ => shapes,
    };
    Ok(Dataset::of_source(Arc::new(shapes)))
}

/// Pairs of answers in a plan that does not read them: so many micro-batches on each replica that more would
/// repeat them.
fn planned_pairs(config: &RunConfig) -> u64 {
    (4 * config.parallel.data * config.train.micro_batch_size) as u64
}
