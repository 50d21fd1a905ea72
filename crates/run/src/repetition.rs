//! The repetition of a step that ran out of memory, with smaller micro-batches.

use config::RunConfig;

use crate::error::{Result, RunError};

/// Returns whether a step that runs out of memory is repeated from the last checkpoint: where ranks
/// communicate within passes, those that wait for the one that failed cannot save the state before the step.
pub(crate) fn is_from_checkpoint(config: &RunConfig) -> bool {
    config.train.halves_micro_batches() && config.parallel.shards_gradients()
}

/// Returns the configuration with micro-batches of half the size and the same samples in each step and each
/// validation, and says so.
///
/// # Errors
/// A micro-batch of an odd size, with `reason`, for which memory did not suffice.
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
