//! Runs the ranks of a job that does not train.

use std::time::Duration;

use collective::{Communicator, threads};
use worker::Setup;

use run::Startup;
use run::{Result, RunError};

/// Runs `body` for every rank of this process, and returns the result of rank 0; `None` on processes without
/// rank 0.
///
/// # Errors
/// The error of the first rank that failed.
pub(crate) fn on_ranks<T: Send + 'static>(
    startup: Startup,
    setup: &Setup,
    body: impl Fn(Communicator) -> Result<T> + Send + Sync + 'static,
) -> Result<Option<T>> {
    let timeout = setup.config.parallel.timeout_seconds;
    let first = startup.rank() == 0;
    if startup.is_in_job() {
        return Ok(startup.run_in_job(timeout, body)?.filter(|_| first));
    }
    if setup.config.world_size() == 1 {
        return body(Communicator::solo()).map(Some);
    }
    let waits = threads::Options { timeout: Duration::from_secs(timeout), ..threads::Options::default() };
    let failed = |error: threads::RunError<RunError>| RunError::Rank {
        rank: error.rank,
        reason: error.cause.to_string(),
    };
    let results = threads::run(setup.config.world_size(), waits, body).map_err(failed)?;
    Ok(results.into_iter().next())
}
