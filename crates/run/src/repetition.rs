//! Retries a step that ran out of memory with smaller micro-batches.

use config::RunConfig;

use crate::error::{Result, RunError};

/// Returns whether a step that ran out of memory is repeated from the last checkpoint, not from the state
/// before it. Needed where ranks communicate within passes: ranks that wait for the failed one cannot save
/// their state.
pub(crate) fn is_from_checkpoint(config: &RunConfig) -> bool {
    config.train.halves_micro_batches() && config.parallel.shards_gradients()
}

/// Returns the configuration with half the micro-batch size and the same samples in each step and validation,
/// and logs the change.
///
/// # Errors
/// The micro-batch size is odd; the message includes `reason`, the out-of-memory error.
pub(crate) fn halved(config: &RunConfig, reason: &str) -> Result<RunConfig> {
    let size = config.train.micro_batch_size;
    let lanes = config.parallel.lanes;
    if !size.is_multiple_of(2) {
        let text = format!("{reason}; train.micro_batch_size = {size} cannot be halved");
        return Err(RunError::Failed(text));
    }
    let validated = config.train.validation_micro_batches * 2;
    let sets = [
        format!("train.micro_batch_size={}", size / 2),
        format!("train.validation_micro_batches={validated}"),
        // The default follows from the number of micro-batches.
        format!("parallel.lanes={lanes}"),
    ];
    let halved = config.with(&sets)?;
    tracing::warn!(
        "{reason}; training goes on with train.micro_batch_size = {} instead of {size}, {} micro-batches \
         of the same samples",
        size / 2,
        halved.train.micro_batches()
    );
    Ok(halved)
}
