//! The repetition of a step that ran out of memory, with smaller micro-batches.

use std::path::Path;

use config::RunConfig;

use crate::error::{Result, RunError};

/// Returns a failure for want of memory as one that is repeated from the last checkpoint, where ranks
/// communicate within passes and so cannot save the state of the step that failed; other errors as they are.
pub(crate) fn from_checkpoint(config: &RunConfig, run_dir: &Path, error: RunError) -> RunError {
    let is_repeated = config.train.halves_micro_batches() && config.parallel.shards_gradients();
    match is_repeated && error.is_out_of_memory() {
        true => RunError::Repeatable { run_dir: run_dir.to_owned(), reason: error.to_string() },
        false => error,
    }
}

/// Returns the configuration with micro-batches of half the size and the same samples in each step and each
/// validation, and says so.
///
/// # Errors
/// A micro-batch of an odd size, with `reason`, for which memory did not suffice.
pub(crate) fn halved(config: &RunConfig, reason: &str) -> Result<RunConfig> {
    let (size, lanes) = (config.train.micro_batch_size, config.parallel.lanes);
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
